package dialect

import "github.com/jmoiron/sqlx"

// The clock of the server, in UTC microseconds, whatever the session's time zone.
const mysqlNow = `TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))`

var mysql = Dialect{
	Name:     MySQLName,
	BindType: sqlx.QUESTION,

	// A schema statement in a handler commits the claim and all that came before it.
	CommitsOnDDL: true,

	LockMigrations: `SELECT 1`,
	CreateVersions: `CREATE TABLE IF NOT EXISTS millrace_schema (version INT NOT NULL PRIMARY KEY, applied_at BIGINT NOT NULL) ENGINE = InnoDB`,
	SelectVersion:  `SELECT COALESCE(MAX(version), 0) FROM millrace_schema`,
	InsertVersion: `
		INSERT INTO millrace_schema (version, applied_at)
		VALUES (?, ` + mysqlNow + `)
		ON DUPLICATE KEY UPDATE version = version`,

	Now: `SELECT ` + mysqlNow,
	// Each server reads what stands in its own kind of comment.
	SelectIdentity: `
		SELECT CONCAT(@@hostname, ' ', @@port, ' ', @@server_id), VARIABLE_VALUE
		FROM /*M! information_schema.GLOBAL_STATUS */ /*!80000 performance_schema.global_status */
		WHERE VARIABLE_NAME = 'UPTIME'`,
	SelectIsolation: `SHOW VARIABLES WHERE Variable_name IN ('transaction_isolation', 'tx_isolation')`,
	SelectSettings: `
		SHOW VARIABLES
		WHERE Variable_name IN ('transaction_isolation', 'tx_isolation', 'innodb_flush_log_at_trx_commit', 'sync_binlog', 'innodb_doublewrite',
			'log_bin', 'innodb_lock_wait_timeout', 'idle_write_transaction_timeout', 'idle_transaction_timeout',
			'wait_timeout', 'max_connections', 'max_allowed_packet', 'sql_mode', 'read_only', 'version', 'autocommit',
			'innodb_read_only', 'tx_read_only', 'transaction_read_only', 'binlog_format')`,
	SelectBackend: `SELECT CAST(CONNECTION_ID() AS CHAR)`,
	// Joined by themselves, MariaDB would read the tables of all databases of the server. The limit keeps it from that.
	SelectColumns: `
		SELECT c.TABLE_NAME, c.COLUMN_NAME, COALESCE(t.ENGINE, '')
		FROM information_schema.COLUMNS c
		JOIN (
			SELECT TABLE_NAME, ENGINE
			FROM information_schema.TABLES
			WHERE TABLE_SCHEMA = DATABASE() AND LEFT(TABLE_NAME, CHAR_LENGTH('{prefix}')) = '{prefix}'
			LIMIT 1000000) t ON t.TABLE_NAME = c.TABLE_NAME
		WHERE c.TABLE_SCHEMA = DATABASE() AND LEFT(c.TABLE_NAME, CHAR_LENGTH('{prefix}')) = '{prefix}'`,
	SelectSizes: `
		SELECT TABLE_NAME AS name, TRUE AS estimated, COALESCE(TABLE_ROWS, -1) AS ` + "`rows`" + `
		FROM information_schema.TABLES
		WHERE TABLE_SCHEMA = DATABASE() AND LEFT(TABLE_NAME, CHAR_LENGTH('{prefix}')) = '{prefix}'`,
	SelectOutgrown:   `SELECT '' FROM DUAL WHERE FALSE`, // InnoDB sees to it by itself, and each statement is planned anew
	SelectUnanalysed: `SELECT '' FROM DUAL WHERE FALSE`,

	InsertConsumer: `
		INSERT INTO millrace_consumers (id, namespace, name, epoch, key_source, retention, window_us, on_replay, created_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ` + mysqlNow + `)
		ON DUPLICATE KEY UPDATE id = id`,
	SelectConsumer: `
		SELECT id, namespace, name, epoch, key_source, retention, window_us, purge_line, paused, created_at,
			purged_at, on_replay, served_until > ` + mysqlNow + ` AS served
		FROM millrace_consumers
		WHERE namespace = ? AND name = ? AND epoch = ?`,
	SelectConsumers: `
		SELECT id, namespace, name, epoch, key_source, retention, window_us, purge_line, paused, created_at,
			purged_at, on_replay, served_until > ` + mysqlNow + ` AS served
		FROM millrace_consumers
		ORDER BY namespace, name, epoch`,
	UpdateConsumer: `
		UPDATE millrace_consumers
		SET retention = ?, window_us = ?, on_replay = ?
		WHERE id = ?`,
	LockConsumer: `
		UPDATE millrace_consumers
		SET purge_line = purge_line
		WHERE id = ?`,
	SelectPurgeLine: `
		SELECT purge_line
		FROM millrace_consumers
		WHERE id = ?`,
	RaisePurgeLine: `
		UPDATE millrace_consumers
		SET purge_line = GREATEST(purge_line, ?)
		WHERE id = ?`,
	NotePurge: `
		UPDATE millrace_consumers
		SET purged_at = ` + mysqlNow + `
		WHERE id = ?`,

	// A real change on conflict, which the caller rolls back: an affected-rows count of 1
	// then means fresh with and without clientFoundRows.
	Claim: `
		INSERT INTO millrace_claims (consumer, message_id, payload_hash, token, result, processed_at)
		VALUES (?, ?, ?, ?, 1, ` + mysqlNow + `)
		ON DUPLICATE KEY UPDATE token = token + 1`,
	Lookup: `
		SELECT c.result, c.payload_hash, c.token, c.processed_at, ` + mysqlNow + ` AS now,
			o.topic AS outcome_topic, o.messages AS outcome,
			m.id AS open_id, m.status AS open_status, m.payload_hash AS open_hash
		FROM millrace_claims c
		LEFT JOIN millrace_outcomes o ON o.consumer = c.consumer AND o.message_id = c.message_id
		LEFT JOIN millrace_messages m ON m.consumer = c.consumer AND m.message_id = c.message_id
		WHERE c.consumer = ? AND c.message_id = ?`,
	Retake: `
		UPDATE millrace_claims
		SET token = ?, payload_hash = ?, result = 1, processed_at = ` + mysqlNow + `
		WHERE consumer = ? AND message_id = ? AND result = 0`,
	SelectClaim: `
		SELECT result, token
		FROM millrace_claims
		WHERE consumer = ? AND message_id = ?`,
	ClaimFormer: `
		INSERT INTO millrace_claims (consumer, message_id, payload_hash, token, result, processed_at)
		VALUES (?, ?, ?, ?, 3, ` + mysqlNow + `)
		ON DUPLICATE KEY UPDATE token = token + 1`,
	DropFormer: `
		DELETE FROM millrace_claims
		WHERE consumer = ? AND message_id = ? AND token = ?`,
	// MariaDB reads what stands in its own kind of comment, and says whether the transaction
	// is still the one that claimed.
	SelectHeld: `
		SELECT result, token, /*M! @@in_transaction + 0 * */ 1 AS live
		FROM millrace_claims
		WHERE consumer = ? AND message_id = ?`,
	OpenClaim: `
		INSERT INTO millrace_claims (consumer, message_id, payload_hash, token, result, processed_at)
		VALUES (?, ?, ?, ?, 0, ` + mysqlNow + `)
		ON DUPLICATE KEY UPDATE token = IF(result = 0, token + 1, token)`,
	ReopenClaim: `
		UPDATE millrace_claims
		SET result = 0
		WHERE consumer = ? AND message_id = ? AND token = ?`,
	CloseClaim: `
		UPDATE millrace_claims
		SET result = ?, processed_at = ` + mysqlNow + `
		WHERE consumer = ? AND message_id = ? AND result = 0`,

	InsertOutcome: `
		INSERT INTO millrace_outcomes (consumer, message_id, topic, messages, created_at)
		VALUES (?, ?, ?, ?, ` + mysqlNow + `)`,
	DeleteOutcomes: `
		DELETE FROM millrace_outcomes
		WHERE consumer = ? AND message_id IN (?)`,
	SelectOutcomes: `
		SELECT o.consumer, c.name, c.epoch, o.message_id, o.topic, o.messages, o.created_at,
			` + mysqlNow + ` - o.created_at AS age
		FROM millrace_outcomes o
		JOIN millrace_consumers c ON c.id = o.consumer
		WHERE c.namespace = ? AND o.created_at <= ` + mysqlNow + ` - ?
		ORDER BY o.created_at, o.consumer, o.message_id
		LIMIT ? OFFSET ?`,
	PutResult: `
		INSERT INTO millrace_results (consumer, message_id, body)
		VALUES (?, ?, ?)
		ON DUPLICATE KEY UPDATE body = VALUES(body)`,

	InsertMessage: `
		INSERT INTO millrace_messages (consumer, message_id, status, attempts, topic, partition_no, offset_no,
			order_key, event_type, event_version, uuid, metadata, payload, payload_hash, last_error, error_group, reason,
			original, aggregate, version, payload_form, payload_ref, received_at, due_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,
			` + mysqlNow + `, ` + mysqlNow + ` + ?)`,
	TouchMessage: `
		UPDATE millrace_messages
		SET attempts = attempts + 1, last_error = ?, error_group = ?, due_at = ` + mysqlNow + ` + ?
		WHERE consumer = ? AND message_id = ? AND status = ?`,
	MoveMessage: `
		UPDATE millrace_messages
		SET status = ?, reason = ?, due_at = ` + mysqlNow + ` + ?, lease_token = 0
		WHERE consumer = ? AND message_id = ? AND status = ?`,
	DeleteMessage: `
		DELETE FROM millrace_messages
		WHERE consumer = ? AND message_id = ? AND status = ?`,
	SelectMessage: `
		SELECT c.name, c.epoch, c.key_source, ` + messageColumns + `
		FROM millrace_messages m
		JOIN millrace_consumers c ON c.id = m.consumer
		WHERE m.id = ? AND c.namespace = ?`,

	StoryClaims: `
		SELECT c.name, c.epoch, k.message_id, k.result, k.processed_at,
			o.created_at AS outcome_at, o.topic AS outcome_topic, o.messages AS outcome, r.body
		FROM millrace_consumers c
		JOIN millrace_claims k ON k.consumer = c.id AND k.message_id = ?
		LEFT JOIN millrace_outcomes o ON o.consumer = k.consumer AND o.message_id = k.message_id
		LEFT JOIN millrace_results r ON r.consumer = k.consumer AND r.message_id = k.message_id
		WHERE c.namespace = ?
		ORDER BY c.name, c.epoch`,
	StoryMessages: `
		SELECT c.name, c.epoch, ` + messageColumns + `
		FROM millrace_consumers c
		JOIN millrace_messages m ON m.consumer = c.id AND m.message_id = ?
		WHERE c.namespace = ?
		UNION ALL
		SELECT c.name, c.epoch, ` + messageColumns + `
		FROM millrace_messages m
		JOIN millrace_consumers c ON c.id = m.consumer
		WHERE c.namespace = ? AND m.original = ?`,
	StoryAudit: `
		SELECT c.name, c.epoch, a.at, a.actor, a.action, a.reason, a.detail
		FROM millrace_audit a
		JOIN millrace_consumers c ON c.id = a.consumer
		WHERE c.namespace = ? AND a.message_id = ?
		ORDER BY a.id`,
	StoryDropped: `
		SELECT c.name, c.epoch, d.at, d.topic, d.reason
		FROM millrace_dropped d
		JOIN millrace_consumers c ON c.id = d.consumer
		WHERE c.namespace = ? AND d.message_id = ?
		ORDER BY d.id`,
	InsertAudit: `
		INSERT INTO millrace_audit (actor, action, reason, consumer, message_id, detail, at)
		VALUES (?, ?, ?, ?, ?, ?, ` + mysqlNow + `)`,
	InsertDropped: `
		INSERT INTO millrace_dropped (consumer, message_id, topic, reason, at)
		VALUES (?, ?, ?, ?, ` + mysqlNow + `)`,

	SelectClaimsPage: `
		SELECT message_id, processed_at, result
		FROM millrace_claims
		WHERE consumer = ? AND message_id > ?
		ORDER BY message_id
		LIMIT ?`,
	CountExpired: `
		SELECT COUNT(*), COALESCE(SUM(CASE WHEN result <> 0 AND processed_at < ? THEN 1 ELSE 0 END), 0)
		FROM (
			SELECT result, processed_at FROM millrace_claims
			WHERE consumer = ?
			ORDER BY message_id
			LIMIT ?) counted`,
	LockExpired: `
		SELECT c.message_id, c.processed_at, c.result
		FROM millrace_claims c
		WHERE c.consumer = ? AND c.message_id IN (?) AND c.result <> 0 AND c.processed_at < ?
			AND NOT EXISTS (
				SELECT 1 FROM millrace_outcomes o WHERE o.consumer = c.consumer AND o.message_id = c.message_id)
		FOR UPDATE SKIP LOCKED`,
	DeleteClaims: `
		DELETE FROM millrace_claims
		WHERE consumer = ? AND message_id IN (?)`,
	DeleteResults: `
		DELETE FROM millrace_results
		WHERE consumer = ? AND message_id IN (?)`,
	SelectShadowed: `
		SELECT page.id, page.consumer, page.message_id, EXISTS (
			SELECT 1 FROM millrace_claims c
			WHERE c.consumer = page.consumer AND c.message_id = page.message_id
				AND (c.result <> 0 AND c.payload_hash = page.payload_hash OR c.result = 4)) AS shadowed
		FROM (
			SELECT id, consumer, message_id, payload_hash
			FROM millrace_messages
			WHERE id > ?
			ORDER BY id
			LIMIT ?) page
		ORDER BY page.id`,
	DeleteMessages: `
		DELETE FROM millrace_messages
		WHERE consumer = ? AND message_id IN (?)`,
	PurgeDropped: `
		DELETE FROM millrace_dropped
		WHERE at < ?
		ORDER BY at
		LIMIT ?`,
	PurgeLeases: `
		DELETE FROM millrace_leases
		WHERE until < ?
		ORDER BY until
		LIMIT ?`,

	AddActivity: `
		INSERT INTO millrace_activity (minute, consumer, completed, failed, duplicates, stale, held, parked, handling_us)
		SELECT ` + mysqlNow + ` DIV 60000000 * 60000000, id, ?, ?, ?, ?, ?, ?, ?
		FROM millrace_consumers
		WHERE namespace = ? AND name = ? AND epoch = ?
		ON DUPLICATE KEY UPDATE
			completed = millrace_activity.completed + VALUES(completed), failed = millrace_activity.failed + VALUES(failed),
			duplicates = millrace_activity.duplicates + VALUES(duplicates), stale = millrace_activity.stale + VALUES(stale),
			held = millrace_activity.held + VALUES(held), parked = millrace_activity.parked + VALUES(parked),
			handling_us = millrace_activity.handling_us + VALUES(handling_us)`,
	SelectActivity: `
		SELECT c.name, c.epoch, a.minute, a.completed, a.failed, a.duplicates, a.stale, a.held, a.parked, a.handling_us
		FROM millrace_activity a
		JOIN millrace_consumers c ON c.id = a.consumer
		WHERE a.minute >= ? AND c.namespace = ?
		ORDER BY a.minute, c.name, c.epoch`,
	PurgeActivity: `
		DELETE FROM millrace_activity
		WHERE minute < ?
		ORDER BY minute, consumer
		LIMIT ?`,

	AcquireLease: `
		INSERT INTO millrace_leases (consumer, message_id, token, until)
		VALUES (?, ?, ?, ` + mysqlNow + ` + ?)
		ON DUPLICATE KEY UPDATE
			token = IF(until <= ` + mysqlNow + `, VALUES(token), token),
			until = IF(token = VALUES(token), VALUES(until), until)`,
	SelectLease: `
		SELECT token, until - ` + mysqlNow + ` AS remaining
		FROM millrace_leases
		WHERE consumer = ? AND message_id = ?`,
	ConfirmLease: `
		UPDATE millrace_leases
		SET token = 0, until = ` + mysqlNow + ` + ?
		WHERE consumer = ? AND message_id = ? AND token = ?`,
	ExtendLease: `
		UPDATE millrace_leases
		SET until = ` + mysqlNow + ` + ?
		WHERE consumer = ? AND message_id = ? AND token = ?`,
	ReleaseLease: `
		DELETE FROM millrace_leases
		WHERE consumer = ? AND message_id = ? AND token = ?`,

	Outbox:  mysqlOutbox,
	Gate:    mysqlGate,
	Queue:   mysqlQueue,
	Remedy:  mysqlRemedy,
	Blobs:   mysqlBlobs,
	Journal: mysqlJournal,
	Replays: mysqlReplays,
	Steps:   mysqlSteps,
	History: mysqlHistory,
}
