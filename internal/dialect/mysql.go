package dialect

import "github.com/jmoiron/sqlx"

var mysql = Dialect{
	Name:     MySQLName,
	BindType: sqlx.QUESTION,
	clock:    `TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))`, // whatever the session's time zone
	charset:  mysqlCharset,

	// A schema statement in a handler commits the claim and all writes before it.
	CommitsOnDDL: true,

	ClaimChanges: true,

	LockMigrations: `SELECT 1`,
	CreateVersions: `CREATE TABLE IF NOT EXISTS millrace_schema (version INT NOT NULL PRIMARY KEY, applied_at BIGINT NOT NULL) ENGINE = InnoDB`,
	InsertVersion: `
		INSERT INTO millrace_schema (version, applied_at)
		VALUES (?, {now})
		ON DUPLICATE KEY UPDATE version = version`,

	// Each server reads its own kind of comment.
	SelectIdentity: `
		SELECT CONCAT(@@hostname, ' ', @@port, ' ', @@server_id), VARIABLE_VALUE
		FROM /*M! information_schema.GLOBAL_STATUS */ /*!80000 performance_schema.global_status */
		WHERE VARIABLE_NAME = 'UPTIME'`,
	SelectIsolation: `SHOW VARIABLES WHERE Variable_name IN ('transaction_isolation', 'tx_isolation', 'max_allowed_packet')`,
	SelectSettings: `
		SHOW VARIABLES
		WHERE Variable_name IN ('transaction_isolation', 'tx_isolation', 'innodb_flush_log_at_trx_commit', 'sync_binlog', 'innodb_doublewrite',
			'log_bin', 'innodb_lock_wait_timeout', 'idle_write_transaction_timeout', 'idle_transaction_timeout',
			'wait_timeout', 'max_connections', 'max_allowed_packet', 'sql_mode', 'read_only', 'version', 'autocommit', 'completion_type',
			'innodb_read_only', 'tx_read_only', 'transaction_read_only', 'binlog_format', 'sql_safe_updates',
			'wsrep_provider', 'wsrep_on', 'wsrep_sync_wait', 'sql_select_limit',
			'character_set_client', 'character_set_connection', 'character_set_results')`,
	SelectBackend: `SELECT CAST(CONNECTION_ID() AS CHAR)`,
	SelectRole: `
		SELECT CONCAT(QUOTE(LEFT(CURRENT_USER(), CHAR_LENGTH(CURRENT_USER()) - LOCATE('@', REVERSE(CURRENT_USER())))), '@',
			QUOTE(SUBSTRING_INDEX(CURRENT_USER(), '@', -1)))`,
	// In a plain join, MariaDB would read the tables of all databases of the server. The LIMIT prevents that.
	SelectColumns: `
		SELECT c.TABLE_NAME, c.COLUMN_NAME, COALESCE(t.ENGINE, 'none'), c.PRIVILEGES
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
	SelectOutgrown:   `SELECT '' FROM DUAL WHERE FALSE`, // InnoDB renews statistics by itself, and plans each statement anew
	SelectUnanalysed: `SELECT '' FROM DUAL WHERE FALSE`,

	InsertConsumer: `
		INSERT INTO millrace_consumers (id, namespace, name, epoch, key_source, retention, window_us, on_replay, created_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, {now})
		ON DUPLICATE KEY UPDATE id = id`,

	// On a conflict it really changes the row, which the caller rolls back. So an affected-rows
	// count of 1 means fresh, with and without clientFoundRows.
	Claim: `
		INSERT INTO millrace_claims (consumer, message_id, payload_hash, token, result, processed_at)
		VALUES (?, ?, ?, ?, 1, {now})
		ON DUPLICATE KEY UPDATE token = token + 1`,
	// MariaDB reads its own kind of comment, and so returns whether a transaction is still open.
	SelectHeld: `
		SELECT result, token, /*M! @@in_transaction + 0 * */ 1 AS live
		FROM millrace_claims
		WHERE consumer = ? AND message_id = ?`,
	// Not a SELECT: go-sql-driver waits for ever where one fails that it has prepared, on MariaDB.
	FailUnlessHeld: `
		SET @millrace = POW(10, 999 * (1 - EXISTS (
			SELECT 1 FROM millrace_claims
			WHERE consumer = ? AND message_id = ? AND token = ? /*M! AND @@in_transaction = 1 */)))`,
	ClaimFormer: `
		INSERT INTO millrace_claims (consumer, message_id, payload_hash, token, result, processed_at)
		VALUES (?, ?, ?, ?, 3, {now})
		ON DUPLICATE KEY UPDATE token = token + 1`,
	OpenClaim: `
		INSERT INTO millrace_claims (consumer, message_id, payload_hash, token, result, processed_at)
		VALUES (?, ?, ?, ?, 0, {now})
		ON DUPLICATE KEY UPDATE token = IF(result = 0, token + 1, token)`,

	PutResult: `
		INSERT INTO millrace_results (consumer, message_id, body)
		VALUES (?, ?, ?)
		ON DUPLICATE KEY UPDATE body = VALUES(body)`,

	LockExpired: `
		SELECT c.message_id, c.processed_at, c.result
		FROM millrace_claims c
		WHERE c.consumer = ? AND c.message_id IN (?) AND c.result <> 0 AND c.processed_at < ?
			AND NOT EXISTS (
				SELECT 1 FROM millrace_outcomes o WHERE o.consumer = c.consumer AND o.message_id = c.message_id)
		FOR UPDATE SKIP LOCKED`,
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
		SELECT {now} DIV 60000000 * 60000000, id, ?, ?, ?, ?, ?, ?, ?
		FROM millrace_consumers
		WHERE namespace = ? AND name = ? AND epoch = ?
		ON DUPLICATE KEY UPDATE
			completed = millrace_activity.completed + VALUES(completed), failed = millrace_activity.failed + VALUES(failed),
			duplicates = millrace_activity.duplicates + VALUES(duplicates), stale = millrace_activity.stale + VALUES(stale),
			held = millrace_activity.held + VALUES(held), parked = millrace_activity.parked + VALUES(parked),
			handling_us = millrace_activity.handling_us + VALUES(handling_us)`,
	PurgeActivity: `
		DELETE FROM millrace_activity
		WHERE minute < ?
		ORDER BY minute, consumer
		LIMIT ?`,

	BeatProcess: `
		INSERT INTO millrace_processes (namespace, name, token, host, pid, program, version, millrace, consumers, serves,
			started_at, seen_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, {now} - ?, {now})
		ON DUPLICATE KEY UPDATE
			consumers = VALUES(consumers), serves = VALUES(serves), seen_at = VALUES(seen_at)`,

	AcquireLease: `
		INSERT INTO millrace_leases (consumer, message_id, token, until)
		VALUES (?, ?, ?, {now} + ?)
		ON DUPLICATE KEY UPDATE
			token = IF(until <= {now}, VALUES(token), token),
			until = IF(token = VALUES(token), VALUES(until), until)`,

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

var mysqlGate = Gate{
	// Assignments run from left to right: the others see by the new token that the row advances.
	StepAggregate: `
		INSERT INTO millrace_versions (consumer, aggregate, version, first_version, token, message_id, payload_hash)
		VALUES (?, ?, ?, ?, ?, ?, ?)
		ON DUPLICATE KEY UPDATE
			token = IF(version >= ? AND version < ?, VALUES(token), token),
			message_id = IF(token = VALUES(token), VALUES(message_id), message_id),
			payload_hash = IF(token = VALUES(token), VALUES(payload_hash), payload_hash),
			version = IF(token = VALUES(token), ?, version)`,

	LockAggregates: `
		INSERT INTO millrace_versions (consumer, aggregate, version, first_version, token, message_id, payload_hash)
		VALUES (?, ?, ?, ?, ?, ?, ?)
		ON DUPLICATE KEY UPDATE token = token`,
	AdvanceAggregates: `
		INSERT INTO millrace_versions (consumer, aggregate, version, first_version, token, message_id, payload_hash, held_to)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?)
		ON DUPLICATE KEY UPDATE
			version = VALUES(version), token = VALUES(token), message_id = VALUES(message_id), payload_hash = VALUES(payload_hash),
			held_to = IF(VALUES(held_to) = 0, held_to,
				GREATEST(held_to + IF(held_to < 9223372036854775807, 1, 0), VALUES(held_to)))`,

	// It always changes the row: Galera lets a row that is only locked be changed on another node, where the
	// predecessor would be applied without releasing the message.
	RaiseHeld: `
		UPDATE millrace_versions
		SET held_to = GREATEST(held_to + IF(held_to < 9223372036854775807, 1, 0), ?)
		WHERE consumer = ? AND aggregate = ?`,
	// by_held has only held messages; by_aggregate also has those that were held too long and are parked.
	ReleaseHeld: `
		UPDATE millrace_messages FORCE INDEX (by_held)
		SET status = 1, reason = ?, due_at = {now}
		WHERE consumer = ? AND place = 3 AND aggregate = ? AND version <= ?`,
	SelectReleased: `
		SELECT id, aggregate
		FROM millrace_messages FORCE INDEX (by_held)
		WHERE consumer = ? AND place = 3 AND aggregate = ? AND version <= ?`,
	CountHeld: `
		SELECT aggregate, COUNT(*) AS held
		FROM (
			SELECT aggregate FROM millrace_messages FORCE INDEX (by_held)
			WHERE consumer = ? AND place = 3 AND aggregate = ?
			LIMIT ?) counted
		GROUP BY aggregate`,
	SelectHeld: `
		SELECT aggregate, version, received_at
		FROM millrace_messages FORCE INDEX (by_held)
		WHERE consumer = ? AND place = 3 AND aggregate = ?
		ORDER BY version
		LIMIT ?`,
	SelectHeldAges: `
		SELECT id, due_at <= {now} AS expired
		FROM millrace_messages FORCE INDEX (by_status)
		WHERE consumer = ? AND status = 7 AND id > ?
		ORDER BY id
		LIMIT ?`,
	SelectExpired: `
		SELECT m.id, m.message_id, m.aggregate, m.version, m.uuid, m.topic, m.event_type, m.metadata
		FROM millrace_messages m FORCE INDEX (PRIMARY)
		WHERE m.id IN (?) AND m.status = 7`,
	LockHeld: `
		SELECT id
		FROM millrace_messages FORCE INDEX (PRIMARY)
		WHERE id IN (?) AND status = 7 AND due_at <= {now}
		FOR UPDATE SKIP LOCKED`,
	SelectWaiting: `
		SELECT aggregate, version, received_at
		FROM millrace_messages FORCE INDEX (by_held)
		WHERE consumer = ? AND place = 3 AND aggregate > ?
		ORDER BY aggregate, version
		LIMIT ?`,

	SetVersion: `
		INSERT INTO millrace_versions (consumer, aggregate, version, first_version, token, message_id, payload_hash)
		VALUES (?, ?, ?, ?, ?, ?, 0)
		ON DUPLICATE KEY UPDATE
			token = IF(version <= VALUES(version), VALUES(token), token),
			message_id = IF(version <= VALUES(version), VALUES(message_id), message_id),
			payload_hash = IF(version <= VALUES(version), 0, payload_hash),
			version = GREATEST(version, VALUES(version))`,
}

var mysqlBlobs = Blobs{
	InsertBlob: `
		INSERT INTO millrace_blobs (name, body)
		VALUES (?, ?)
		ON DUPLICATE KEY UPDATE name = name`,
}

var mysqlJournal = Journal{
	InsertJournal: `
		INSERT INTO millrace_journal (consumer, message_id, topic, order_key, event_type, event_version, uuid, metadata,
			payload, payload_hash, payload_form, payload_ref, received_at, processed_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, COALESCE(?, {now}), {now})
		ON DUPLICATE KEY UPDATE id = id`,
}

var mysqlReplays = Replays{
	InsertReplay: `
		INSERT INTO millrace_replays (namespace, name, source, spec, reached, last_id, sent, skipped, state, actor, reason,
			started_at, moved_at)
		VALUES (?, ?, ?, ?, 0, ?, 0, 0, 1, ?, ?, {now}, {now})
		ON DUPLICATE KEY UPDATE id = id`,
}

var mysqlSteps = Steps{
	InsertStep: `
		INSERT INTO millrace_steps (id, namespace, consumer, message_id, name, epoch, state, token, until, started_at)
		VALUES (?, ?, ?, ?, ?, ?, 1, ?, {now} + ?, {now})
		ON DUPLICATE KEY UPDATE token = token`,
}

var mysqlHistory = History{
	InsertHistory: `
		INSERT INTO millrace_history (consumer, message_id, slot, number, at, received_at, attempts, status, failed, reason, error,
			run_of, process, took_us, trace)
		SELECT m.consumer, m.message_id, (COALESCE(k.number, 0) + 1) % 10, COALESCE(k.number, 0) + 1, {now},
			LEAST(m.received_at, COALESCE(k.received_at, m.received_at)), m.attempts, m.status, ?, m.reason, m.last_error,
			COALESCE(k.number, 0) + 1, ?, ?, ?
		FROM millrace_messages m
		LEFT JOIN (
			SELECT message_id, MAX(number) AS number, MIN(received_at) AS received_at
			FROM millrace_history
			WHERE consumer = ? AND message_id IN (?)
			GROUP BY message_id) k ON k.message_id = m.message_id
		WHERE m.consumer = ? AND m.message_id IN (?)
		ON DUPLICATE KEY UPDATE
			number = VALUES(number), at = VALUES(at), received_at = VALUES(received_at), attempts = VALUES(attempts),
			status = VALUES(status), failed = VALUES(failed), reason = VALUES(reason), error = VALUES(error),
			run_of = VALUES(run_of), process = VALUES(process), took_us = VALUES(took_us), trace = VALUES(trace)`,
}
