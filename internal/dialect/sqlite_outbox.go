package dialect

// Where ids are known, +status keeps SQLite, which may have no statistics, from using the index on the
// status: a whole backlog may have the same status. SQLite gives no id twice, so a message's results need its id alone.
var sqliteOutbox = Outbox{
	SelectWhereabouts: `
		SELECT '', applied_at
		FROM millrace_schema
		WHERE version = 1`, // a file has many names
	SelectPending: `
		SELECT ` + outboxColumns + `, created_at, {now} - created_at AS age,
			CASE WHEN o.order_key IS NOT NULL THEN (
				SELECT k.id FROM millrace_outbox k INDEXED BY ix_millrace_outbox_order
				WHERE k.key_hash = o.key_hash AND k.id < o.id
					AND k.order_key IS NOT NULL AND (k.status IN (0, 2) OR k.blocked_key IS NOT NULL)
				ORDER BY k.id DESC
				LIMIT 1) END AS behind
		FROM millrace_outbox o INDEXED BY ix_millrace_outbox_status
		WHERE id NOT IN (SELECT value FROM json_each(?))
			AND status = 0 AND due_at = 0 AND id > ? AND (? >> ABS(key_hash % ?)) & 1 = 1
		ORDER BY id
		LIMIT ?`,
	SelectFirsts: `
		SELECT key_hash, id
		FROM (
			SELECT value AS key_hash, (
				SELECT k.id FROM millrace_outbox k INDEXED BY ix_millrace_outbox_order
				WHERE k.key_hash = value AND k.order_key IS NOT NULL AND (k.status IN (0, 2) OR k.blocked_key IS NOT NULL)
				ORDER BY k.id
				LIMIT 1) AS id
			FROM json_each(?))
		WHERE id IS NOT NULL`,
	SelectDue: `
		SELECT ` + outboxColumns + `, created_at, {now} - created_at AS age
		FROM millrace_outbox INDEXED BY ix_millrace_outbox_status
		WHERE id NOT IN (SELECT value FROM json_each(?))
			AND status = 1 AND due_at <= (SELECT {now}) AND (? >> ABS(key_hash % ?)) & 1 = 1
		ORDER BY due_at, id
		LIMIT ?`,
	SelectNextDue: `
		SELECT MIN(due_at) - {now}
		FROM (
			SELECT due_at FROM millrace_outbox INDEXED BY ix_millrace_outbox_status
			WHERE status = 1 AND (? >> ABS(key_hash % ?)) & 1 = 1
			ORDER BY due_at, id
			LIMIT 1) counted`,
	SelectLaterDue: `
		SELECT MIN(due_at) - {now}
		FROM (
			SELECT due_at FROM millrace_outbox INDEXED BY ix_millrace_outbox_status
			WHERE status = 1 AND due_at > (SELECT {now}) AND (? >> ABS(key_hash % ?)) & 1 = 1
			ORDER BY due_at, id
			LIMIT 1) counted`,
	SelectKnown: `
		WITH ids AS (SELECT value FROM json_each(?))
		SELECT id, key_hash, status, created_at FROM millrace_outbox
		WHERE id IN (SELECT value FROM ids)`,
	SelectKey: `
		SELECT * FROM (
			SELECT ` + outboxColumns + `, created_at, {now} - created_at AS age
			FROM millrace_outbox INDEXED BY ix_millrace_outbox_order
			WHERE key_hash = ? AND id > ?
				AND order_key IS NOT NULL AND (status IN (0, 2) OR blocked_key IS NOT NULL)
			ORDER BY id
			LIMIT ?)`,
	ListKeys: `
		SELECT key_hash
		FROM millrace_outbox INDEXED BY ix_millrace_outbox_order
		WHERE key_hash >= ? AND order_key IS NOT NULL AND (status IN (0, 2) OR blocked_key IS NOT NULL)
		ORDER BY key_hash
		LIMIT ?`,

	DeleteSent: `
		WITH ids AS (SELECT json_extract(value, '$[0]') AS id FROM json_each(?))
		DELETE FROM millrace_outbox
		WHERE id IN (SELECT id FROM ids) AND +status IN (0, 1, 2) AND ` + relayAlive + `?)`,
	KeepSent: `
		WITH ids AS (SELECT json_extract(value, '$[0]') AS id FROM json_each(?))
		UPDATE millrace_outbox
		SET status = 4, blocked_key = NULL, sent_at = {now}, due_at = {now} + ?
		WHERE id IN (SELECT id FROM ids) AND +status IN (0, 1, 2) AND ` + relayAlive + `?)`,
	SetAside: `
		WITH j AS (
			SELECT json_extract(value, '$.id') AS id, json_extract(value, '$.status') AS status,
				json_extract(value, '$.delay') AS delay, json_extract(value, '$.attempts') AS attempts,
				json_extract(value, '$.error') AS error, json_extract(value, '$.blocks') AS blocks
			FROM json_each(?))
		UPDATE millrace_outbox
		SET status = j.status, due_at = {now} + j.delay, attempts = j.attempts, last_error = j.error,
			blocked_key = j.blocks
		FROM j
		WHERE millrace_outbox.id = j.id AND +millrace_outbox.status IN (0, 1, 2) AND ` + relayAlive + `?)`,
	Postpone: `
		WITH ids AS (SELECT json_extract(value, '$[0]') AS id FROM json_each(?))
		UPDATE millrace_outbox
		SET status = 1, due_at = {now} + ?, last_error = ?,
			blocked_key = CASE WHEN order_key IS NULL THEN NULL ELSE key_hash END
		WHERE id IN (SELECT id FROM ids) AND +status IN (0, 1, 2) AND ` + relayAlive + `?)`,
	HoldBack: `
		WITH ids AS (SELECT json_extract(value, '$[0]') AS id FROM json_each(?))
		UPDATE millrace_outbox
		SET status = 2, blocked_key = key_hash
		WHERE id IN (SELECT id FROM ids) AND +status IN (0, 1) AND ` + relayAlive + `?)`,

	PurgeSent: `
		DELETE FROM millrace_outbox
		WHERE id IN (
			SELECT id FROM millrace_outbox
			WHERE status = 4 AND due_at < ? ORDER BY due_at LIMIT ?)`,
	CountBacklog: `
		SELECT 0 AS status, COUNT(*) AS messages, COALESCE({now} - MIN(created_at), 0) AS age
		FROM (
			SELECT created_at FROM millrace_outbox INDEXED BY ix_millrace_outbox_status
			WHERE status = 0 AND due_at = 0
			ORDER BY id
			LIMIT ?) counted
		UNION ALL
		SELECT 1 AS status, COUNT(*) AS messages, COALESCE({now} - MIN(created_at), 0) AS age
		FROM (
			SELECT created_at FROM millrace_outbox INDEXED BY ix_millrace_outbox_status
			WHERE status = 1
			ORDER BY due_at, id
			LIMIT ?) counted
		UNION ALL
		SELECT 2 AS status, COUNT(*) AS messages, COALESCE({now} - MIN(CASE
			WHEN key_hash IN (
				SELECT CASE WHEN blocked_key IS NOT NULL THEN key_hash END AS key_hash
				FROM millrace_outbox INDEXED BY ix_millrace_outbox_status
				WHERE status = 3
				ORDER BY due_at, id
				LIMIT 10000) THEN NULL
			ELSE created_at END), 0) AS age
		FROM (
			SELECT created_at, key_hash FROM millrace_outbox INDEXED BY ix_millrace_outbox_status
			WHERE status = 2
			ORDER BY due_at, id
			LIMIT ?) counted
		UNION ALL
		SELECT 3 AS status, COUNT(*) AS messages, COALESCE({now} - MIN(created_at), 0) AS age
		FROM (
			SELECT created_at FROM millrace_outbox INDEXED BY ix_millrace_outbox_status
			WHERE status = 3
			ORDER BY due_at, id
			LIMIT ?) counted`,

	SelectCaused: `
		SELECT id, topic, order_key, uuid, event_type, status, attempts, created_at, sent_at, last_error
		FROM millrace_outbox
		WHERE id >= ? AND id <= ? AND cause = ?
		ORDER BY id
		LIMIT ?`,

	SelectSent: `
		SELECT ` + outboxColumns + `, event_type, created_at, sent_at
		FROM millrace_outbox
		WHERE id > ? AND id <= ? AND +status = 4 AND (? IS NULL OR topic = ?) AND created_at >= ? AND created_at < ?
		ORDER BY id
		LIMIT ?`,
	CountSent: `
		SELECT topic, COUNT(*) AS messages, MIN(created_at) AS first_at, MAX(created_at) AS last_at, MAX(id) AS last_id
		FROM millrace_outbox
		WHERE id > ? AND id <= ? AND status = 4 AND (? IS NULL OR topic = ?) AND created_at >= ? AND created_at < ?
		GROUP BY topic
		ORDER BY topic`,

	InsertShards: `
		INSERT INTO millrace_outbox_shards (generation, shard, owner)
		SELECT ?, n.shard, 0 FROM (
			WITH RECURSIVE numbers (shard) AS (SELECT 0 UNION ALL SELECT shard + 1 FROM numbers WHERE shard + 1 < ?)
			SELECT shard FROM numbers) n
		WHERE TRUE
		ON CONFLICT (generation, shard) DO NOTHING`,
}
