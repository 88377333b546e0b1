package dialect

import "github.com/jmoiron/sqlx"

var sqlite = Dialect{
	Name:     SQLiteName,
	BindType: sqlx.QUESTION,
	clock:    `(CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000)`, // in whole milliseconds

	OneWriter: true,

	LockMigrations: `INSERT INTO millrace_schema (version, applied_at) VALUES (0, 0) ON CONFLICT (version) DO UPDATE SET applied_at = 0`,

	SelectIdentity:  `SELECT '', 0`,
	SelectIsolation: `SELECT 'isolation', 'serializable'`,
	SelectSettings: `
		SELECT 'journal_mode', journal_mode FROM pragma_journal_mode
		UNION ALL SELECT 'synchronous', CAST(synchronous AS TEXT) FROM pragma_synchronous
		UNION ALL SELECT 'busy_timeout', CAST(timeout AS TEXT) FROM pragma_busy_timeout
		UNION ALL SELECT 'query_only', CAST(query_only AS TEXT) FROM pragma_query_only
		UNION ALL SELECT 'file', COALESCE(file, '') FROM pragma_database_list WHERE name = 'main'
		UNION ALL SELECT 'attached', COALESCE(GROUP_CONCAT(name, ', '), '') FROM pragma_database_list WHERE name NOT IN ('main', 'temp')
		UNION ALL SELECT 'version', sqlite_version()`,
	SelectBackend: `SELECT ''`,
	SelectRole:    `SELECT ''`,
	SelectColumns: `
		SELECT t.name, c.name, 'file', 'select,insert,update,delete'
		FROM sqlite_master t, pragma_table_info(t.name) c
		WHERE t.type = 'table' AND SUBSTR(t.name, 1, LENGTH('{prefix}')) = '{prefix}'`,
	SelectSizes: `
		SELECT 'millrace_schema' AS name, FALSE AS estimated, COUNT(*) AS rows FROM millrace_schema
		UNION ALL SELECT 'millrace_consumers', FALSE, COUNT(*) FROM millrace_consumers
		UNION ALL SELECT 'millrace_claims', FALSE, COUNT(*) FROM millrace_claims
		UNION ALL SELECT 'millrace_outcomes', FALSE, COUNT(*) FROM millrace_outcomes
		UNION ALL SELECT 'millrace_results', FALSE, COUNT(*) FROM millrace_results
		UNION ALL SELECT 'millrace_messages', FALSE, COUNT(*) FROM millrace_messages
		UNION ALL SELECT 'millrace_audit', FALSE, COUNT(*) FROM millrace_audit
		UNION ALL SELECT 'millrace_dropped', FALSE, COUNT(*) FROM millrace_dropped
		UNION ALL SELECT 'millrace_leases', FALSE, COUNT(*) FROM millrace_leases
		UNION ALL SELECT 'millrace_blobs', FALSE, COUNT(*) FROM millrace_blobs
		UNION ALL SELECT 'millrace_activity', FALSE, COUNT(*) FROM millrace_activity
		UNION ALL SELECT 'millrace_outbox', FALSE, COUNT(*) FROM millrace_outbox
		UNION ALL SELECT 'millrace_outbox_relays', FALSE, COUNT(*) FROM millrace_outbox_relays
		UNION ALL SELECT 'millrace_outbox_layout', FALSE, COUNT(*) FROM millrace_outbox_layout
		UNION ALL SELECT 'millrace_outbox_shards', FALSE, COUNT(*) FROM millrace_outbox_shards
		UNION ALL SELECT 'millrace_versions', FALSE, COUNT(*) FROM millrace_versions
		UNION ALL SELECT 'millrace_journal', FALSE, COUNT(*) FROM millrace_journal
		UNION ALL SELECT 'millrace_replays', FALSE, COUNT(*) FROM millrace_replays
		UNION ALL SELECT 'millrace_steps', FALSE, COUNT(*) FROM millrace_steps
		UNION ALL SELECT 'millrace_history', FALSE, COUNT(*) FROM millrace_history
		UNION ALL SELECT 'millrace_audit_messages', FALSE, COUNT(*) FROM millrace_audit_messages
		UNION ALL SELECT 'millrace_processes', FALSE, COUNT(*) FROM millrace_processes`,
	SelectOutgrown:   `SELECT '' WHERE FALSE`, // SQLite plans by the indexes, not by the number of rows
	SelectUnanalysed: `SELECT '' WHERE FALSE`,

	RaisePurgeLine: `
		UPDATE millrace_consumers
		SET purge_line = MAX(purge_line, ?)
		WHERE id = ?`,

	LockExpired: `
		SELECT c.message_id, c.processed_at, c.result
		FROM millrace_claims c
		WHERE c.consumer = ? AND c.message_id IN (?) AND c.result <> 0 AND c.processed_at < ?
			AND NOT EXISTS (
				SELECT 1 FROM millrace_outcomes o WHERE o.consumer = c.consumer AND o.message_id = c.message_id)`,
	PurgeDropped: `
		DELETE FROM millrace_dropped
		WHERE id IN (
			SELECT id FROM millrace_dropped WHERE at < ? ORDER BY at LIMIT ?)`,
	PurgeLeases: `
		DELETE FROM millrace_leases
		WHERE (consumer, message_id) IN (
			SELECT consumer, message_id FROM millrace_leases
			WHERE until < ? ORDER BY until LIMIT ?)`,

	AddActivity: `
		INSERT INTO millrace_activity AS a (minute, consumer, completed, failed, duplicates, stale, held, parked, handling_us)
		SELECT {now} / 60000000 * 60000000, id, ?, ?, ?, ?, ?, ?, ?
		FROM millrace_consumers
		WHERE namespace = ? AND name = ? AND epoch = ?
		ON CONFLICT (minute, consumer) DO UPDATE SET
			completed = a.completed + EXCLUDED.completed, failed = a.failed + EXCLUDED.failed,
			duplicates = a.duplicates + EXCLUDED.duplicates, stale = a.stale + EXCLUDED.stale,
			held = a.held + EXCLUDED.held, parked = a.parked + EXCLUDED.parked,
			handling_us = a.handling_us + EXCLUDED.handling_us`,
	PurgeActivity: `
		DELETE FROM millrace_activity
		WHERE (minute, consumer) IN (
			SELECT minute, consumer FROM millrace_activity
			WHERE minute < ? ORDER BY minute, consumer LIMIT ?)`,

	Outbox:  sqliteOutbox,
	Gate:    sqliteGate,
	Queue:   sqliteQueue,
	Remedy:  sqliteRemedy,
	Journal: sqliteJournal,
	History: sqliteHistory,
}

var sqliteGate = Gate{
	Returning: true,

	LockAggregate: `
		UPDATE millrace_versions
		SET held_to = held_to
		WHERE consumer = ? AND aggregate = ?
		RETURNING version, first_version, held_to, token, message_id, payload_hash`,

	RaiseHeld: `
		UPDATE millrace_versions
		SET held_to = MAX(held_to, ?)
		WHERE consumer = ? AND aggregate = ?`,
	SelectReleased: `
		SELECT id, aggregate
		FROM millrace_messages INDEXED BY ix_millrace_messages_held
		WHERE consumer = ? AND aggregate = ? AND version <= ? AND status = 7`,
	CountHeld: `
		SELECT aggregate, COUNT(*) AS held
		FROM (
			SELECT aggregate FROM millrace_messages INDEXED BY ix_millrace_messages_held
			WHERE consumer = ? AND aggregate = ? AND status = 7
			LIMIT ?) counted`,
	SelectHeld: `
		SELECT aggregate, version, received_at
		FROM millrace_messages INDEXED BY ix_millrace_messages_held
		WHERE consumer = ? AND aggregate = ? AND status = 7
		ORDER BY version
		LIMIT ?`,
	SelectHeldAges: `
		SELECT id, due_at <= {now} AS expired
		FROM millrace_messages INDEXED BY ix_millrace_messages_ages
		WHERE consumer = ? AND status = 7 AND id > ?
		ORDER BY id
		LIMIT ?`,
	SelectExpired: `
		SELECT m.id, m.message_id, m.aggregate, m.version, m.uuid, m.topic, m.event_type, m.metadata
		FROM millrace_messages m
		WHERE m.id IN (?) AND +m.status = 7`,
	LockHeld: `
		SELECT id
		FROM millrace_messages
		WHERE id IN (?) AND +status = 7 AND due_at <= {now}`,
	SelectWaiting: `
		SELECT aggregate, version, received_at
		FROM millrace_messages INDEXED BY ix_millrace_messages_held
		WHERE consumer = ? AND aggregate > ? AND status = 7
		ORDER BY aggregate, version
		LIMIT ?`,
}

var sqliteJournal = Journal{
	InsertJournal: `
		INSERT INTO millrace_journal (consumer, message_id, topic, order_key, event_type, event_version, uuid, metadata,
			payload, payload_hash, payload_form, payload_ref, received_at, processed_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, COALESCE(?, {now}), {now})
		ON CONFLICT (consumer, message_id) DO NOTHING`,
}

var sqliteHistory = History{
	InsertHistory: `
		INSERT INTO millrace_history (consumer, message_id, slot, number, at, received_at, attempts, status, failed, reason, error,
			run_of, process, took_us, trace)
		SELECT m.consumer, m.message_id, (COALESCE(k.number, 0) + 1) % 10, COALESCE(k.number, 0) + 1, {now},
			MIN(m.received_at, COALESCE(k.received_at, m.received_at)), m.attempts, m.status, ?, m.reason, m.last_error,
			COALESCE(k.number, 0) + 1, ?, ?, ?
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
