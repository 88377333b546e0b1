package dialect

import "github.com/jmoiron/sqlx"

// postgresPlanned is a condition that is always true, on an argument that is never NULL. It makes PostgreSQL plan the
// statement anew each time. Otherwise a connection that repeats a statement keeps its generic plan, unless plans for the
// actual arguments cost less; and a generic plan made while the table was almost empty reads the whole table, even for
// each order key, which can take minutes. A generic plan would have to count to a million for this condition. In a plan
// for actual arguments the condition disappears. Planning takes up to half a millisecond, so the statements that every
// message needs do without it; see SelectOutgrown.
const postgresPlanned = ` IS NOT NULL OR (SELECT COUNT(*) FROM generate_series(1, 1000000)) > 0)`

// postgresFirst limits a read in the order of an index, inside a query with the same limit. If the planner knows the
// limit but has no statistics, it expects fewer rows than that, and sorts all rows for each page. It cannot see the
// value of this inner limit, so it chooses a plan that starts fast. Without the outer limit it would expect a long
// result and compile the statement (jit).
const postgresFirst = `LIMIT (SELECT `

// postgresAll limits nothing, but the planner expects a tenth of the rows. PostgreSQL would compile a statement (jit) that
// may return all rows of a long table, and returns few.
const postgresAll = `LIMIT (SELECT NULL::BIGINT)`

// postgresAnalysed selects the tables of the inbox; postgresMayAnalyse is whether the role may analyse one.
const (
	postgresAnalysed = `pg_class c
		JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relname IN ('{prefix}claims', '{prefix}outcomes', '{prefix}results', '{prefix}messages', '{prefix}versions',
				'{prefix}journal', '{prefix}history', '{prefix}steps', '{prefix}leases', '{prefix}blobs',
				'{prefix}audit', '{prefix}audit_messages', '{prefix}dropped', '{prefix}activity', '{prefix}replays', '{prefix}processes',
				'{prefix}consumers')
			AND c.relkind = 'r'
			AND (n.nspname = '{schema}' OR '{schema}' = '' AND pg_table_is_visible(c.oid))`
	postgresMayAnalyse = `CASE WHEN current_setting('server_version_num')::INTEGER < 170000 THEN pg_has_role(c.relowner, 'USAGE')
				ELSE has_table_privilege(c.oid, 'MAINTAIN') END`
)

var postgres = Dialect{
	Name:     PostgresName,
	BindType: sqlx.DOLLAR,
	clock:    `(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::BIGINT`, // now() is the transaction's start

	LockMigrations: `SELECT pg_advisory_xact_lock(7236837562345)`,
	SelectHidden: `
		SELECT n.nspname, current_schema()
		FROM pg_class c
		JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relname = '{prefix}schema' AND '{schema}' = '' AND pg_table_is_visible(c.oid) AND n.nspname <> current_schema()`,
	SelectLacking: `
		SELECT '{schema}'
		WHERE '{schema}' <> '' AND NOT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = '{schema}')`,

	SelectIdentity:  `SELECT EXTRACT(EPOCH FROM pg_postmaster_start_time())::TEXT, 0`, // whatever the session's time zone
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
	SelectRole:    `SELECT quote_ident(current_user)`,
	SelectBackend: `SELECT pg_backend_pid() || ' of ' || EXTRACT(EPOCH FROM pg_postmaster_start_time())`,
	SelectColumns: `
		SELECT c.relname, a.attname, CASE c.relpersistence WHEN 'p' THEN 'permanent' WHEN 'u' THEN 'unlogged' ELSE 'temporary' END,
			CONCAT_WS(',',
				CASE WHEN has_column_privilege(c.oid, a.attnum, 'SELECT') THEN 'select' END,
				CASE WHEN has_column_privilege(c.oid, a.attnum, 'INSERT') THEN 'insert' END,
				CASE WHEN has_column_privilege(c.oid, a.attnum, 'UPDATE') THEN 'update' END,
				CASE WHEN has_table_privilege(c.oid, 'DELETE') THEN 'delete' END)
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
	// Below a thousand rows any plan will do. If the role may not analyse a table, ANALYZE makes the server log a warning.
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

	// The sub-select makes the time constant for the statement, so that an index can be searched with it.
	SelectOutcomes: `
		SELECT o.consumer, c.name, c.epoch, o.message_id, o.topic, o.created_at,
			{now} - o.created_at AS age
		FROM millrace_outcomes o
		JOIN millrace_consumers c ON c.id = o.consumer
		WHERE c.namespace = $1 AND ($2::BYTEA IS NULL OR c.name = $3) AND ($4::INTEGER IS NULL OR c.epoch = $5)
			AND o.created_at <= (SELECT {now}) - $6
		ORDER BY o.created_at, o.consumer, o.message_id
		LIMIT $7 OFFSET $8`,

	LockExpired: `
		SELECT c.message_id, c.processed_at, c.result
		FROM millrace_claims c
		WHERE c.consumer = ? AND c.message_id IN (?) AND c.result <> 0 AND c.processed_at < ?
			AND NOT EXISTS (
				SELECT 1 FROM millrace_outcomes o WHERE o.consumer = c.consumer AND o.message_id = c.message_id)
		FOR UPDATE OF c SKIP LOCKED`,
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
		SELECT {now} / 60000000 * 60000000, id, $1::BIGINT, $2::BIGINT, $3::BIGINT, $4::BIGINT, $5::BIGINT, $6::BIGINT, $7::BIGINT
		FROM millrace_consumers
		WHERE namespace = $8 AND name = $9 AND epoch = $10
		ON CONFLICT (minute, consumer) DO UPDATE SET
			completed = a.completed + EXCLUDED.completed, failed = a.failed + EXCLUDED.failed,
			duplicates = a.duplicates + EXCLUDED.duplicates, stale = a.stale + EXCLUDED.stale,
			held = a.held + EXCLUDED.held, parked = a.parked + EXCLUDED.parked,
			handling_us = a.handling_us + EXCLUDED.handling_us`,
	PurgeActivity: `
		DELETE FROM millrace_activity
		WHERE (minute, consumer) IN (
			SELECT minute, consumer FROM millrace_activity
			WHERE minute < $1 AND ($1::BIGINT` + postgresPlanned + `
			ORDER BY minute, consumer LIMIT $2 FOR UPDATE SKIP LOCKED)`,

	Outbox:  postgresOutbox,
	Gate:    postgresGate,
	Queue:   postgresQueue,
	Remedy:  postgresRemedy,
	Journal: postgresJournal,
	History: postgresHistory,
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
}

var postgresGate = Gate{
	Returning: true,

	// The claim comes first: EXISTS is evaluated once, before the aggregate is looked for.
	ClaimAndAdvance: `
		WITH claimed AS (
			INSERT INTO millrace_claims (consumer, message_id, payload_hash, token, result, processed_at)
			VALUES ($1, $2, $3, $4, 1, {now})
			ON CONFLICT (consumer, message_id) DO NOTHING
			RETURNING 1
		), advanced AS (
			UPDATE millrace_versions
			SET version = $5, token = $4, message_id = $2, payload_hash = $3
			WHERE consumer = $1 AND aggregate = $6 AND version = $7 AND held_to < $5 AND EXISTS (SELECT 1 FROM claimed)
			RETURNING 1
		)
		SELECT 1 FROM claimed UNION ALL SELECT 1 FROM advanced`,

	RaiseHeld: `
		UPDATE millrace_versions
		SET held_to = GREATEST(held_to, $1)
		WHERE consumer = $2 AND aggregate = $3`,
	// ORDER BY makes both use the index: else they read all rows if the statistics say that most wait for the aggregate.
	SelectReleased: `
		SELECT m.id, m.aggregate
		FROM (VALUES ($1::INTEGER, $2::BYTEA, $3::BIGINT)) a (consumer, aggregate, version)
		CROSS JOIN LATERAL (
			SELECT id, aggregate FROM (
				SELECT id, aggregate FROM millrace_messages
				WHERE consumer = a.consumer AND aggregate = a.aggregate AND version <= a.version AND status = 7
				ORDER BY version
				` + postgresAll + `) waiting
			` + postgresAll + `) m
		` + postgresAll,
	CountHeld: `
		SELECT aggregate, COUNT(*) AS held
		FROM (
			SELECT aggregate FROM millrace_messages
			WHERE consumer = $1 AND aggregate = $2 AND status = 7
			ORDER BY version
			LIMIT $3) counted
		GROUP BY aggregate`,
	SelectHeld: `
		SELECT aggregate, version, received_at
		FROM millrace_messages
		WHERE consumer = $1 AND aggregate = $2 AND status = 7
		ORDER BY version
		LIMIT $3`,
	SelectHeldAges: `
		SELECT * FROM (
			SELECT id, due_at <= (SELECT {now}) AS expired
			FROM millrace_messages
			WHERE consumer = $1 AND (status, id) > (7, $2) AND status <= 7
			ORDER BY status, id
			` + postgresFirst + `$3::BIGINT)) page
		LIMIT $3`,
	SelectVersions: `
		SELECT * FROM (
			SELECT aggregate
			FROM millrace_versions
			WHERE consumer = $1 AND aggregate > $2
			ORDER BY aggregate
			` + postgresFirst + `$3::BIGINT)) page
		LIMIT $3`,
	SelectForgetable: `
		SELECT * FROM (
			SELECT c.message_id
			FROM millrace_claims c
			WHERE c.consumer = $1 AND c.message_id > $2 AND c.result <> 0 AND NOT EXISTS (
				SELECT 1 FROM millrace_outcomes o WHERE o.consumer = c.consumer AND o.message_id = c.message_id)
			ORDER BY c.message_id
			` + postgresFirst + `$3::BIGINT)) page
		LIMIT $3`,
	SelectExpired: `
		SELECT m.id, m.message_id, m.aggregate, m.version, m.uuid, m.topic, m.event_type, m.metadata
		FROM millrace_messages m
		WHERE m.id IN (?) AND m.status + 0 = 7`,
	LockHeld: `
		SELECT id
		FROM millrace_messages
		WHERE id IN (?) AND status + 0 = 7 AND due_at <= (SELECT {now})
		FOR UPDATE SKIP LOCKED`,
	SelectWaiting: `
		SELECT aggregate, version, received_at
		FROM millrace_messages
		WHERE (consumer, aggregate) > ($1, $2) AND consumer <= $1 AND status = 7
		ORDER BY consumer, aggregate, version
		LIMIT $3`,
}

var postgresJournal = Journal{
	InsertJournal: `
		INSERT INTO millrace_journal (consumer, message_id, topic, order_key, event_type, event_version, uuid, metadata,
			payload, payload_hash, payload_form, payload_ref, received_at, processed_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, COALESCE($13::BIGINT, {now}), {now})
		ON CONFLICT (consumer, message_id) DO NOTHING`,
	SelectJournal: `
		SELECT c.name, c.epoch, j.id, j.consumer, j.message_id, j.topic, j.order_key, j.event_type, j.event_version, j.uuid, j.metadata,
			j.payload_hash, j.payload_form, j.payload_ref, j.payload, j.received_at, j.processed_at
		FROM millrace_journal j
		JOIN millrace_consumers c ON c.id = j.consumer
		WHERE j.id > $1 AND j.id <= $2 AND j.consumer = $3 AND ($4::BYTEA IS NULL OR j.topic = $5)
			AND j.processed_at >= $6 AND j.processed_at < $7
		ORDER BY j.id
		LIMIT $8`,
	CountJournal: `
		SELECT j.topic, COUNT(*) AS messages, MIN(j.processed_at) AS first_at, MAX(j.processed_at) AS last_at, MAX(j.id) AS last_id
		FROM millrace_journal j
		WHERE j.id > $1 AND j.id <= $2 AND j.consumer = $3 AND ($4::BYTEA IS NULL OR j.topic = $5)
			AND j.processed_at >= $6 AND j.processed_at < $7
		GROUP BY j.topic
		ORDER BY j.topic`,
}

var postgresHistory = History{
	InsertHistory: `
		INSERT INTO millrace_history (consumer, message_id, slot, number, at, received_at, attempts, status, failed, reason, error,
			run_of, process, took_us, trace)
		SELECT m.consumer, m.message_id, (COALESCE(k.number, 0) + 1) % 10, COALESCE(k.number, 0) + 1, {now},
			LEAST(m.received_at, COALESCE(k.received_at, m.received_at)), m.attempts, m.status, ?::SMALLINT, m.reason, m.last_error,
			COALESCE(k.number, 0) + 1, ?::BYTEA, ?::BIGINT, ?::BYTEA
		FROM millrace_messages m
		LEFT JOIN (
			SELECT message_id, MAX(number) AS number, MIN(received_at) AS received_at
			FROM millrace_history
			WHERE consumer = ? AND message_id IN (?)
			GROUP BY message_id) k ON k.message_id = m.message_id
		WHERE m.consumer = ? AND m.message_id IN (?)
		ON CONFLICT (consumer, message_id, slot) DO UPDATE SET
			number = EXCLUDED.number, at = EXCLUDED.at, received_at = EXCLUDED.received_at, attempts = EXCLUDED.attempts,
			status = EXCLUDED.status, failed = EXCLUDED.failed, reason = EXCLUDED.reason, error = EXCLUDED.error,
			run_of = EXCLUDED.run_of, process = EXCLUDED.process, took_us = EXCLUDED.took_us, trace = EXCLUDED.trace`,
}
