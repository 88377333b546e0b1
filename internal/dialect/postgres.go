package dialect

import "github.com/jmoiron/sqlx"

// The clock of the server, in UTC microseconds: now() would be the transaction's start.
const postgresNow = `(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::BIGINT`

// postgresPlanned is a condition that always holds, of an argument that is never NULL. PostgreSQL keeps the plan of a
// statement that a connection runs again and again, unless plans for the arguments at hand cost less. One that was
// made when next to nothing was stored reads all that is stored, for each order key even, which can take minutes. A
// plan that is to be kept would have to count up to a million for this. In one for the arguments at hand the
// condition is gone, so the statement is planned each time, for the table as it is. That takes up to half a
// millisecond: statements that each message takes do without, see SelectOutgrown.
const postgresPlanned = ` IS NOT NULL OR (SELECT COUNT(*) FROM generate_series(1, 1000000)) > 0)`

// postgresFirst limits what is read in the order of an index, in a statement that has the same limit around it. A
// planner that knows the limit, and no statistics, expects less than that, and sorts all there is for each page.
// This one it cannot see, so it takes a plan that starts fast. The one around it keeps it from expecting a long
// result, for which it would compile the statement (jit).
const postgresFirst = `LIMIT (SELECT `

// postgresAnalysed are the tables of the inbox, and postgresMayAnalyse is whether the role may analyse one.
const (
	postgresAnalysed = `pg_class c
		JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relname IN ('{prefix}claims', '{prefix}outcomes', '{prefix}results', '{prefix}messages', '{prefix}versions',
				'{prefix}journal', '{prefix}history', '{prefix}steps', '{prefix}leases', '{prefix}blobs',
				'{prefix}audit', '{prefix}dropped', '{prefix}activity', '{prefix}replays', '{prefix}consumers')
			AND c.relkind = 'r'
			AND (n.nspname = '{schema}' OR '{schema}' = '' AND pg_table_is_visible(c.oid))`
	postgresMayAnalyse = `CASE WHEN current_setting('server_version_num')::INTEGER < 170000 THEN pg_has_role(c.relowner, 'USAGE')
				ELSE has_table_privilege(c.oid, 'MAINTAIN') END`
)

var postgres = Dialect{
	Name:     PostgresName,
	BindType: sqlx.DOLLAR,

	LockMigrations: `SELECT pg_advisory_xact_lock(7236837562345)`,
	CreateVersions: `CREATE TABLE IF NOT EXISTS millrace_schema (version INTEGER NOT NULL PRIMARY KEY, applied_at BIGINT NOT NULL)`,
	SelectVersion:  `SELECT COALESCE(MAX(version), 0) FROM millrace_schema`,
	InsertVersion: `
		INSERT INTO millrace_schema (version, applied_at)
		VALUES ($1, ` + postgresNow + `)
		ON CONFLICT (version) DO UPDATE SET applied_at = millrace_schema.applied_at`,

	Now:             `SELECT ` + postgresNow,
	SelectIdentity:  `SELECT pg_postmaster_start_time()::TEXT, 0`,
	SelectIsolation: `SELECT 'default_transaction_isolation', current_setting('default_transaction_isolation')`,
	SelectSettings: `
		SELECT name, setting
		FROM pg_settings
		WHERE name IN ('default_transaction_isolation', 'synchronous_commit', 'fsync', 'full_page_writes',
			'idle_in_transaction_session_timeout', 'lock_timeout', 'statement_timeout', 'max_connections',
			'default_transaction_read_only', 'server_version_num', 'transaction_timeout',
			'tcp_keepalives_idle', 'tcp_user_timeout', 'plan_cache_mode')
		UNION ALL SELECT name || '.source', source FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'
		UNION ALL SELECT 'in_recovery', pg_is_in_recovery()::TEXT`,
	SelectBackend: `SELECT pg_backend_pid() || ' of ' || pg_postmaster_start_time()`,
	SelectColumns: `
		SELECT c.relname, a.attname, CASE c.relpersistence WHEN 'p' THEN 'permanent' WHEN 'u' THEN 'unlogged' ELSE 'temporary' END
		FROM pg_class c
		JOIN pg_namespace n ON n.oid = c.relnamespace
		JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
		WHERE starts_with(c.relname, '{prefix}') AND c.relkind IN ('r', 'p')
			AND (n.nspname = '{schema}' OR '{schema}' = '' AND pg_table_is_visible(c.oid))`,
	SelectSizes: `
		SELECT c.relname AS name, TRUE AS estimated, CASE
			WHEN c.relpages > 0 AND c.reltuples >= 0 THEN c.reltuples::BIGINT
			WHEN pg_stat_get_tuples_inserted(c.oid) > 0 THEN pg_stat_get_live_tuples(c.oid)
			WHEN pg_relation_size(c.oid) = 0 THEN 0
			ELSE -1 END AS rows
		FROM pg_class c
		JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE starts_with(c.relname, '{prefix}') AND c.relkind IN ('r', 'p')
			AND (n.nspname = '{schema}' OR '{schema}' = '' AND pg_table_is_visible(c.oid))`,
	// Below a thousand rows any plan will do. Where a role may not analyse a table, the server would log a warning.
	SelectOutgrown: `
		SELECT format('ANALYZE (SKIP_LOCKED) %I.%I', n.nspname, c.relname)
		FROM ` + postgresAnalysed + `
			AND pg_stat_get_live_tuples(c.oid) > 4 * GREATEST(c.reltuples, 250)
			AND ` + postgresMayAnalyse,
	SelectUnanalysed: `
		SELECT c.relname
		FROM ` + postgresAnalysed + `
			AND NOT ` + postgresMayAnalyse + `
		ORDER BY c.relname`,

	InsertConsumer: `
		INSERT INTO millrace_consumers (id, namespace, name, epoch, key_source, retention, window_us, on_replay, created_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, ` + postgresNow + `)
		ON CONFLICT DO NOTHING`,
	SelectConsumer: `
		SELECT id, namespace, name, epoch, key_source, retention, window_us, purge_line, paused, created_at,
			purged_at, on_replay, served_until > ` + postgresNow + ` AS served
		FROM millrace_consumers
		WHERE namespace = $1 AND name = $2 AND epoch = $3`,
	SelectConsumers: `
		SELECT id, namespace, name, epoch, key_source, retention, window_us, purge_line, paused, created_at,
			purged_at, on_replay, served_until > ` + postgresNow + ` AS served
		FROM millrace_consumers
		ORDER BY namespace, name, epoch`,
	UpdateConsumer: `
		UPDATE millrace_consumers
		SET retention = $1, window_us = $2, on_replay = $3
		WHERE id = $4`,
	LockConsumer: `
		UPDATE millrace_consumers
		SET purge_line = purge_line
		WHERE id = $1`,
	SelectPurgeLine: `
		SELECT purge_line
		FROM millrace_consumers
		WHERE id = $1`,
	RaisePurgeLine: `
		UPDATE millrace_consumers
		SET purge_line = GREATEST(purge_line, $1)
		WHERE id = $2`,
	NotePurge: `
		UPDATE millrace_consumers
		SET purged_at = ` + postgresNow + `
		WHERE id = $1`,

	Claim: `
		INSERT INTO millrace_claims (consumer, message_id, payload_hash, token, result, processed_at)
		VALUES ($1, $2, $3, $4, 1, ` + postgresNow + `)
		ON CONFLICT (consumer, message_id) DO NOTHING`,
	Lookup: `
		SELECT c.result, c.payload_hash, c.token, c.processed_at, ` + postgresNow + ` AS now,
			o.topic AS outcome_topic, o.messages AS outcome,
			m.id AS open_id, m.status AS open_status, m.payload_hash AS open_hash
		FROM millrace_claims c
		LEFT JOIN millrace_outcomes o ON o.consumer = c.consumer AND o.message_id = c.message_id
		LEFT JOIN millrace_messages m ON m.consumer = c.consumer AND m.message_id = c.message_id
		WHERE c.consumer = $1 AND c.message_id = $2`,
	Retake: `
		UPDATE millrace_claims
		SET token = $1, payload_hash = $2, result = 1, processed_at = ` + postgresNow + `
		WHERE consumer = $3 AND message_id = $4 AND result = 0`,
	SelectClaim: `
		SELECT result, token
		FROM millrace_claims
		WHERE consumer = $1 AND message_id = $2`,
	ClaimFormer: `
		INSERT INTO millrace_claims (consumer, message_id, payload_hash, token, result, processed_at)
		VALUES ($1, $2, $3, $4, 3, ` + postgresNow + `)
		ON CONFLICT (consumer, message_id) DO NOTHING`,
	DropFormer: `
		DELETE FROM millrace_claims
		WHERE consumer = $1 AND message_id = $2 AND token = $3`,
	SelectHeld: `
		SELECT result, token, 1 AS live
		FROM millrace_claims
		WHERE consumer = $1 AND message_id = $2`,
	OpenClaim: `
		INSERT INTO millrace_claims (consumer, message_id, payload_hash, token, result, processed_at)
		VALUES ($1, $2, $3, $4, 0, ` + postgresNow + `)
		ON CONFLICT (consumer, message_id) DO UPDATE SET
			token = CASE WHEN millrace_claims.result = 0 THEN millrace_claims.token + 1 ELSE millrace_claims.token END`,
	ReopenClaim: `
		UPDATE millrace_claims
		SET result = 0
		WHERE consumer = $1 AND message_id = $2 AND token = $3`,
	CloseClaim: `
		UPDATE millrace_claims
		SET result = $1, processed_at = ` + postgresNow + `
		WHERE consumer = $2 AND message_id = $3 AND result = 0`,

	InsertOutcome: `
		INSERT INTO millrace_outcomes (consumer, message_id, topic, messages, created_at)
		VALUES ($1, $2, $3, $4, ` + postgresNow + `)`,
	DeleteOutcomes: `
		DELETE FROM millrace_outcomes
		WHERE consumer = ? AND message_id IN (?)`,
	// A sub-select gives one time for all rows, without which no index can be asked for it.
	SelectOutcomes: `
		SELECT o.consumer, c.name, c.epoch, o.message_id, o.topic, o.messages, o.created_at,
			` + postgresNow + ` - o.created_at AS age
		FROM millrace_outcomes o
		JOIN millrace_consumers c ON c.id = o.consumer
		WHERE c.namespace = $1 AND o.created_at <= (SELECT ` + postgresNow + `) - $2
		ORDER BY o.created_at, o.consumer, o.message_id
		LIMIT $3 OFFSET $4`,
	PutResult: `
		INSERT INTO millrace_results (consumer, message_id, body)
		VALUES ($1, $2, $3)
		ON CONFLICT (consumer, message_id) DO UPDATE SET body = EXCLUDED.body`,

	InsertMessage: `
		INSERT INTO millrace_messages (consumer, message_id, status, attempts, topic, partition_no, offset_no,
			order_key, event_type, event_version, uuid, metadata, payload, payload_hash, last_error, error_group, reason,
			original, aggregate, version, payload_form, payload_ref, received_at, due_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22,
			` + postgresNow + `, ` + postgresNow + ` + $23)`,
	TouchMessage: `
		UPDATE millrace_messages
		SET attempts = attempts + 1, last_error = $1, error_group = $2, due_at = ` + postgresNow + ` + $3
		WHERE consumer = $4 AND message_id = $5 AND status = $6`,
	MoveMessage: `
		UPDATE millrace_messages
		SET status = $1, reason = $2, due_at = ` + postgresNow + ` + $3, lease_token = 0
		WHERE consumer = $4 AND message_id = $5 AND status = $6`,
	DeleteMessage: `
		DELETE FROM millrace_messages
		WHERE consumer = $1 AND message_id = $2 AND status = $3`,
	SelectMessage: `
		SELECT c.name, c.epoch, c.key_source, ` + messageColumns + `
		FROM millrace_messages m
		JOIN millrace_consumers c ON c.id = m.consumer
		WHERE m.id = $1 AND c.namespace = $2`,

	StoryClaims: `
		SELECT c.name, c.epoch, k.message_id, k.result, k.processed_at,
			o.created_at AS outcome_at, o.topic AS outcome_topic, o.messages AS outcome, r.body
		FROM millrace_consumers c
		JOIN millrace_claims k ON k.consumer = c.id AND k.message_id = $1
		LEFT JOIN millrace_outcomes o ON o.consumer = k.consumer AND o.message_id = k.message_id
		LEFT JOIN millrace_results r ON r.consumer = k.consumer AND r.message_id = k.message_id
		WHERE c.namespace = $2
		ORDER BY c.name, c.epoch`,
	StoryMessages: `
		SELECT c.name, c.epoch, ` + messageColumns + `
		FROM millrace_consumers c
		JOIN millrace_messages m ON m.consumer = c.id AND m.message_id = $1
		WHERE c.namespace = $2
		UNION ALL
		SELECT c.name, c.epoch, ` + messageColumns + `
		FROM millrace_messages m
		JOIN millrace_consumers c ON c.id = m.consumer
		WHERE c.namespace = $3 AND m.original = $4`,
	StoryAudit: `
		SELECT c.name, c.epoch, a.at, a.actor, a.action, a.reason, a.detail
		FROM millrace_audit a
		JOIN millrace_consumers c ON c.id = a.consumer
		WHERE c.namespace = $1 AND a.message_id = $2
		ORDER BY a.id`,
	StoryDropped: `
		SELECT c.name, c.epoch, d.at, d.topic, d.reason
		FROM millrace_dropped d
		JOIN millrace_consumers c ON c.id = d.consumer
		WHERE c.namespace = $1 AND d.message_id = $2
		ORDER BY d.id`,
	InsertAudit: `
		INSERT INTO millrace_audit (actor, action, reason, consumer, message_id, detail, at)
		VALUES ($1, $2, $3, $4, $5, $6, ` + postgresNow + `)`,
	InsertDropped: `
		INSERT INTO millrace_dropped (consumer, message_id, topic, reason, at)
		VALUES ($1, $2, $3, $4, ` + postgresNow + `)`,

	SelectClaimsPage: `
		SELECT * FROM (
			SELECT message_id, processed_at, result
			FROM millrace_claims
			WHERE consumer = $1 AND message_id > $2
			ORDER BY message_id
			` + postgresFirst + `$3::BIGINT)) page
		LIMIT $3`,
	CountExpired: `
		SELECT COUNT(*), COALESCE(SUM(CASE WHEN result <> 0 AND processed_at < $1 THEN 1 ELSE 0 END), 0)
		FROM (
			SELECT * FROM (
				SELECT result, processed_at FROM millrace_claims
				WHERE consumer = $2
				ORDER BY message_id
				` + postgresFirst + `$3::BIGINT)) page
			LIMIT $3) counted`,
	LockExpired: `
		SELECT c.message_id, c.processed_at, c.result
		FROM millrace_claims c
		WHERE c.consumer = ? AND c.message_id IN (?) AND c.result <> 0 AND c.processed_at < ?
			AND NOT EXISTS (
				SELECT 1 FROM millrace_outcomes o WHERE o.consumer = c.consumer AND o.message_id = c.message_id)
		FOR UPDATE OF c SKIP LOCKED`,
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
			WHERE id > $1
			ORDER BY id
			LIMIT $2) page
		ORDER BY page.id`,
	DeleteMessages: `
		DELETE FROM millrace_messages
		WHERE consumer = ? AND message_id IN (?)`,
	PurgeDropped: `
		DELETE FROM millrace_dropped
		WHERE id IN (
			SELECT id FROM millrace_dropped
			WHERE at < $1 AND ($1::BIGINT` + postgresPlanned + `
			ORDER BY at LIMIT $2 FOR UPDATE SKIP LOCKED)`,
	PurgeLeases: `
		DELETE FROM millrace_leases
		WHERE (consumer, message_id) IN (
			SELECT consumer, message_id FROM millrace_leases
			WHERE until < $1 AND ($1::BIGINT` + postgresPlanned + `
			ORDER BY until LIMIT $2 FOR UPDATE SKIP LOCKED)`,

	AddActivity: `
		INSERT INTO millrace_activity AS a (minute, consumer, completed, failed, duplicates, stale, held, parked, handling_us)
		SELECT ` + postgresNow + ` / 60000000 * 60000000, id, $1::BIGINT, $2::BIGINT, $3::BIGINT, $4::BIGINT, $5::BIGINT, $6::BIGINT, $7::BIGINT
		FROM millrace_consumers
		WHERE namespace = $8 AND name = $9 AND epoch = $10
		ON CONFLICT (minute, consumer) DO UPDATE SET
			completed = a.completed + EXCLUDED.completed, failed = a.failed + EXCLUDED.failed,
			duplicates = a.duplicates + EXCLUDED.duplicates, stale = a.stale + EXCLUDED.stale,
			held = a.held + EXCLUDED.held, parked = a.parked + EXCLUDED.parked,
			handling_us = a.handling_us + EXCLUDED.handling_us`,
	SelectActivity: `
		SELECT c.name, c.epoch, a.minute, a.completed, a.failed, a.duplicates, a.stale, a.held, a.parked, a.handling_us
		FROM millrace_activity a
		JOIN millrace_consumers c ON c.id = a.consumer
		WHERE a.minute >= $1 AND c.namespace = $2
		ORDER BY a.minute, c.name, c.epoch`,
	PurgeActivity: `
		DELETE FROM millrace_activity
		WHERE (minute, consumer) IN (
			SELECT minute, consumer FROM millrace_activity
			WHERE minute < $1 AND ($1::BIGINT` + postgresPlanned + `
			ORDER BY minute, consumer LIMIT $2 FOR UPDATE SKIP LOCKED)`,

	AcquireLease: `
		INSERT INTO millrace_leases (consumer, message_id, token, until)
		VALUES ($1, $2, $3, ` + postgresNow + ` + $4)
		ON CONFLICT (consumer, message_id) DO UPDATE SET token = EXCLUDED.token, until = EXCLUDED.until
			WHERE millrace_leases.until <= ` + postgresNow,
	SelectLease: `
		SELECT token, until - ` + postgresNow + ` AS remaining
		FROM millrace_leases
		WHERE consumer = $1 AND message_id = $2`,
	ConfirmLease: `
		UPDATE millrace_leases
		SET token = 0, until = ` + postgresNow + ` + $1
		WHERE consumer = $2 AND message_id = $3 AND token = $4`,
	ExtendLease: `
		UPDATE millrace_leases
		SET until = ` + postgresNow + ` + $1
		WHERE consumer = $2 AND message_id = $3 AND token = $4`,
	ReleaseLease: `
		DELETE FROM millrace_leases
		WHERE consumer = $1 AND message_id = $2 AND token = $3`,

	Outbox:  postgresOutbox,
	Gate:    postgresGate,
	Queue:   postgresQueue,
	Remedy:  postgresRemedy,
	Blobs:   postgresBlobs,
	Journal: postgresJournal,
	Replays: postgresReplays,
	Steps:   postgresSteps,
	History: postgresHistory,
}
