package dialect

const (
	sqliteInsert = `
		INSERT INTO millrace_outbox (key_hash, topic, order_key, uuid, event_type, metadata, payload, cause, created_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ` + sqliteNow + `)`

	sqliteAlive = `EXISTS (SELECT 1 FROM millrace_outbox_relays r WHERE r.until > ` + sqliteNow + ` AND r.token = `
)

// A plus keeps SQLite, where it has no statistics, from the index of a status that a whole backlog
// may have, for messages that are known by their ids.
var sqliteOutbox = Outbox{
	Insert:      sqliteInsert,
	InsertAlone: sqliteInsert,
	SelectGuard: `SELECT 1`,

	SelectPending: `
		SELECT ` + outboxColumns + `, ` + sqliteNow + ` - created_at AS age,
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
	SelectDue: `
		SELECT ` + outboxColumns + `, ` + sqliteNow + ` - created_at AS age
		FROM millrace_outbox INDEXED BY ix_millrace_outbox_status
		WHERE id NOT IN (SELECT value FROM json_each(?))
			AND status = 1 AND due_at <= (SELECT ` + sqliteNow + `) AND (? >> ABS(key_hash % ?)) & 1 = 1
		ORDER BY due_at, id
		LIMIT ?`,
	SelectAside: `
		WITH ids AS (SELECT value FROM json_each(?))
		SELECT id FROM millrace_outbox
		WHERE id IN (SELECT value FROM ids) AND +status IN (1, 3)`,
	SelectNextDue: `
		SELECT MIN(due_at) - ` + sqliteNow + `
		FROM (
			SELECT due_at FROM millrace_outbox INDEXED BY ix_millrace_outbox_status
			WHERE status = 1 AND (? >> ABS(key_hash % ?)) & 1 = 1
			ORDER BY due_at, id
			LIMIT 1) counted`,
	SelectKey: `
		SELECT * FROM (
			SELECT ` + outboxColumns + `, ` + sqliteNow + ` - created_at AS age
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

	SelectHighest: `
		SELECT MAX(id)
		FROM millrace_outbox
		WHERE id > ?`,

	DeleteSent: `
		WITH ids AS (SELECT value FROM json_each(?))
		DELETE FROM millrace_outbox
		WHERE id IN (SELECT value FROM ids) AND +status IN (0, 1, 2) AND ` + sqliteAlive + `?)`,
	KeepSent: `
		WITH ids AS (SELECT value FROM json_each(?))
		UPDATE millrace_outbox
		SET status = 4, blocked_key = NULL, sent_at = ` + sqliteNow + `, due_at = ` + sqliteNow + ` + ?
		WHERE id IN (SELECT value FROM ids) AND +status IN (0, 1, 2) AND ` + sqliteAlive + `?)`,
	SetAside: `
		WITH j AS (
			SELECT json_extract(value, '$.id') AS id, json_extract(value, '$.status') AS status,
				json_extract(value, '$.delay') AS delay, json_extract(value, '$.attempts') AS attempts,
				json_extract(value, '$.error') AS error, json_extract(value, '$.blocks') AS blocks
			FROM json_each(?))
		UPDATE millrace_outbox
		SET status = j.status, due_at = ` + sqliteNow + ` + j.delay, attempts = j.attempts, last_error = j.error,
			blocked_key = j.blocks
		FROM j
		WHERE millrace_outbox.id = j.id AND +millrace_outbox.status IN (0, 1, 2) AND ` + sqliteAlive + `?)`,
	Postpone: `
		WITH ids AS (SELECT value FROM json_each(?))
		UPDATE millrace_outbox
		SET status = 1, due_at = ` + sqliteNow + ` + ?, last_error = ?,
			blocked_key = CASE WHEN order_key IS NULL THEN NULL ELSE key_hash END
		WHERE id IN (SELECT value FROM ids) AND +status IN (0, 1, 2) AND ` + sqliteAlive + `?)`,
	HoldBack: `
		WITH ids AS (SELECT value FROM json_each(?))
		UPDATE millrace_outbox
		SET status = 2, blocked_key = key_hash
		WHERE id IN (SELECT value FROM ids) AND +status IN (0, 1) AND ` + sqliteAlive + `?)`,

	SelectParked: `
		SELECT ` + outboxColumns + `, event_type, last_error, due_at AS parked_at
		FROM millrace_outbox
		WHERE status = 3 AND id > ?
		ORDER BY id
		LIMIT ?`,
	ListParked: `
		SELECT ` + outboxOutline + `, event_type, last_error, due_at AS parked_at
		FROM (
			SELECT id AS page_id FROM millrace_outbox
			WHERE status = 3 AND id > ?
			ORDER BY id
			LIMIT ?) page
		JOIN millrace_outbox ON id = page_id
		ORDER BY id`,
	RetryParked: `
		UPDATE millrace_outbox
		SET status = 1, due_at = ` + sqliteNow + `, attempts = 0
		WHERE id = ? AND status = 3`,
	DropParked: `
		DELETE FROM millrace_outbox
		WHERE id = ? AND status = 3`,
	PurgeSent: `
		DELETE FROM millrace_outbox
		WHERE id IN (
			SELECT id FROM millrace_outbox
			WHERE status = 4 AND due_at < (SELECT ` + sqliteNow + `) ORDER BY due_at LIMIT ?)`,
	CountBacklog: `
		SELECT 0 AS status, COUNT(*) AS messages, COALESCE(` + sqliteNow + ` - MIN(created_at), 0) AS age
		FROM (
			SELECT created_at FROM millrace_outbox INDEXED BY ix_millrace_outbox_status
			WHERE status = 0 AND due_at = 0
			ORDER BY id
			LIMIT ?) counted
		UNION ALL
		SELECT 1 AS status, COUNT(*) AS messages, COALESCE(` + sqliteNow + ` - MIN(created_at), 0) AS age
		FROM (
			SELECT created_at FROM millrace_outbox INDEXED BY ix_millrace_outbox_status
			WHERE status = 1
			ORDER BY due_at, id
			LIMIT ?) counted
		UNION ALL
		SELECT 2 AS status, COUNT(*) AS messages, COALESCE(` + sqliteNow + ` - MIN(CASE
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
		SELECT 3 AS status, COUNT(*) AS messages, COALESCE(` + sqliteNow + ` - MIN(created_at), 0) AS age
		FROM (
			SELECT created_at FROM millrace_outbox INDEXED BY ix_millrace_outbox_status
			WHERE status = 3
			ORDER BY due_at, id
			LIMIT ?) counted`,

	SelectEnds: `
		SELECT COALESCE((SELECT MIN(id) FROM millrace_outbox), 1) AS lowest,
			COALESCE((SELECT MAX(id) FROM millrace_outbox), 0) AS highest`,
	SelectNext: `
		SELECT id, created_at
		FROM millrace_outbox
		WHERE id >= ?
		ORDER BY id
		LIMIT 1`,
	SelectCaused: `
		SELECT id, topic, order_key, uuid, event_type, status, attempts, created_at, sent_at, last_error
		FROM millrace_outbox
		WHERE id >= ? AND id <= ? AND cause = ?
		ORDER BY id
		LIMIT ?`,

	SelectSent: `
		SELECT ` + outboxColumns + `, event_type, created_at, sent_at
		FROM millrace_outbox
		WHERE id > ? AND id <= ? AND status = 4 AND (? IS NULL OR topic = ?) AND created_at >= ? AND created_at < ?
		ORDER BY id
		LIMIT ?`,
	CountSent: `
		SELECT topic, COUNT(*) AS messages, MIN(created_at) AS first_at, MAX(created_at) AS last_at, MAX(id) AS last_id
		FROM millrace_outbox
		WHERE id > ? AND id <= ? AND status = 4 AND (? IS NULL OR topic = ?) AND created_at >= ? AND created_at < ?
		GROUP BY topic
		ORDER BY topic`,

	InsertRelay: `
		INSERT INTO millrace_outbox_relays (token, name, started_at, until)
		VALUES (?, ?, ` + sqliteNow + `, ` + sqliteNow + ` + ?)`,
	BeatRelay: `
		UPDATE millrace_outbox_relays
		SET until = ` + sqliteNow + ` + ?
		WHERE token = ? AND until > ` + sqliteNow,
	DeleteRelay: `
		DELETE FROM millrace_outbox_relays
		WHERE token = ?`,
	CountExpired: `
		SELECT COUNT(*)
		FROM millrace_outbox_relays
		WHERE until <= ` + sqliteNow,
	DeleteExpired: `
		DELETE FROM millrace_outbox_relays
		WHERE until <= ` + sqliteNow,
	SelectRelays: `
		SELECT token
		FROM millrace_outbox_relays
		ORDER BY token`,
	ListRelays: `
		SELECT token, name, started_at, until, ` + sqliteNow + ` AS now
		FROM millrace_outbox_relays
		ORDER BY started_at, token`,
	InsertLayout: `
		INSERT INTO millrace_outbox_layout (id, generation, shards, target)
		VALUES (1, 1, ?, ?)
		ON CONFLICT (id) DO NOTHING`,
	SelectLayout: `
		SELECT generation, shards, target
		FROM millrace_outbox_layout
		WHERE id = 1`,
	SwitchLayout: `
		UPDATE millrace_outbox_layout
		SET generation = generation + 1, shards = ?, target = ?
		WHERE id = 1 AND generation = ?`,
	InsertShards: `
		INSERT INTO millrace_outbox_shards (generation, shard, owner)
		SELECT ?, n.shard, 0 FROM (
			WITH RECURSIVE numbers (shard) AS (SELECT 0 UNION ALL SELECT shard + 1 FROM numbers WHERE shard + 1 < ?)
			SELECT shard FROM numbers) n
		WHERE TRUE
		ON CONFLICT (generation, shard) DO NOTHING`,
	SelectShards: `
		SELECT shard, owner
		FROM millrace_outbox_shards
		WHERE generation = ?
		ORDER BY shard`,
	ClaimShards: `
		UPDATE millrace_outbox_shards
		SET owner = ?
		WHERE generation = ? AND (? >> shard) & 1 = 1 AND owner = ?`,
	FreeShards: `
		UPDATE millrace_outbox_shards
		SET owner = 0
		WHERE owner = ?`,

	Notify: `SELECT 1`,
	Listen: `SELECT 1`,
}
