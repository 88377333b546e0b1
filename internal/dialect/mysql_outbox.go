package dialect

const (
	// The ids of a JSON array, as a table to join from. In a sub-select of a DELETE, or in a join with
	// a small table whose order and index are not forced, the server would read every row. Such a
	// statement waits for every transaction that has stored a message, while no relay can extend its lease.
	mysqlIDs = `JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) j`

	mysqlRows = `JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]', at BIGINT PATH '$[1]')) j`

	mysqlAsides = `JSON_TABLE(?, '$[*]' COLUMNS (
			id BIGINT PATH '$.id', at BIGINT PATH '$.at', status SMALLINT PATH '$.status', delay BIGINT PATH '$.delay',
			attempts INT PATH '$.attempts', error TEXT PATH '$.error', blocks BIGINT PATH '$.blocks')) j`

	// mysqlCharset is empty if texts come through the connection as they are.
	mysqlCharset = `CASE
			WHEN @@character_set_client <> 'utf8mb4' THEN CONCAT('character_set_client is ', @@character_set_client)
			WHEN @@character_set_connection <> 'utf8mb4' THEN CONCAT('character_set_connection is ', @@character_set_connection)
			WHEN @@character_set_results <> 'utf8mb4' THEN CONCAT('character_set_results is ', @@character_set_results)
			ELSE ''
		END`
)

// MariaDB reads a whole key to find the message before another one, and all that was sent of the key, as long as some transaction
// can still see it. So SelectPending does not search for each message: SelectShortKeys reads each key once, and of a long one only
// the beginning. Its outer LIMIT keeps the servers from asking for each message again whether the key is long. MySQL would sort the
// whole key for an order by id alone.
var mysqlOutbox = Outbox{
	SelectWhereabouts: `
		SELECT LOWER(DATABASE()), applied_at
		FROM millrace_schema
		WHERE version = 1`, // where names have no case, a connection has the one that it asked for

	// Outside of a transaction MariaDB computes a number that is out of range: an error in each sql_mode. A NULL
	// is none where the mode is not strict and the INSERT has several rows.
	Insert: `
		INSERT INTO millrace_outbox (key_hash, topic, order_key, uuid, event_type, metadata, payload, cause, created_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, /*M! ~0 * (1 - @@in_transaction) + */ {now})`,
	SelectGuard: `SELECT /*M! 1 + */ 0, ` + mysqlCharset + `, @@max_allowed_packet`, // true on MariaDB, which reads the comments in Insert too

	SelectLayout: `
		SELECT generation, shards, target, ` + mysqlCharset + `
		FROM millrace_outbox_layout
		WHERE id = 1`,

	SelectPending: `
		SELECT ` + outboxColumns + `, created_at, {now} - created_at AS age
		FROM millrace_outbox FORCE INDEX (by_status)
		WHERE id NOT IN (SELECT j.id FROM ` + mysqlIDs + `)
			AND status = 0 AND due_at = 0 AND id > ? AND (? >> ABS(key_hash % ?)) & 1 = 1
		ORDER BY id
		LIMIT ?`,
	SelectShortKeys: `
		SELECT short.key_hash, k.id
		FROM (
			SELECT j.id AS key_hash, (
				SELECT o.id FROM millrace_outbox o FORCE INDEX (by_order)
				WHERE o.order_hash = j.id
				ORDER BY o.order_hash, o.id
				LIMIT 63, 1) AS beyond
			FROM ` + mysqlIDs + `
			LIMIT 1000000) short
		STRAIGHT_JOIN millrace_outbox k FORCE INDEX (by_order) ON k.order_hash = short.key_hash
		WHERE short.beyond IS NULL`,
	SelectFirsts: `
		SELECT key_hash, id
		FROM (
			SELECT j.id AS key_hash, (
				SELECT o.id FROM millrace_outbox o FORCE INDEX (by_order)
				WHERE o.order_hash = j.id
				ORDER BY o.order_hash, o.id
				LIMIT 1) AS id
			FROM ` + mysqlIDs + `
			LIMIT 1000000) first
		WHERE id IS NOT NULL`,
	SelectDue: `
		SELECT ` + outboxColumns + `, created_at, {now} - created_at AS age
		FROM millrace_outbox FORCE INDEX (by_status)
		WHERE id NOT IN (SELECT j.id FROM ` + mysqlIDs + `)
			AND status = 1 AND due_at <= (SELECT {now}) AND (? >> ABS(key_hash % ?)) & 1 = 1
		ORDER BY due_at, id
		LIMIT ?`,
	SelectNextDue: `
		SELECT MIN(due_at) - {now}
		FROM (
			SELECT due_at FROM millrace_outbox FORCE INDEX (by_status)
			WHERE status = 1 AND (? >> ABS(key_hash % ?)) & 1 = 1
			ORDER BY due_at, id
			LIMIT 1) counted`,
	SelectLaterDue: `
		SELECT MIN(due_at) - {now}
		FROM (
			SELECT due_at FROM millrace_outbox FORCE INDEX (by_status)
			WHERE status = 1 AND due_at > (SELECT {now}) AND (? >> ABS(key_hash % ?)) & 1 = 1
			ORDER BY due_at, id
			LIMIT 1) counted`,
	SelectKnown: `
		SELECT o.id, o.key_hash, o.status, o.created_at
		FROM ` + mysqlIDs + `
		STRAIGHT_JOIN millrace_outbox o FORCE INDEX (PRIMARY) ON o.id = j.id`,
	SelectKey: `
		(SELECT ` + outboxColumns + `, created_at, {now} - created_at AS age
		FROM millrace_outbox FORCE INDEX (by_order)
		WHERE order_hash = ? AND id > ?
		ORDER BY id
		LIMIT ?)`,
	ListKeys: `
		SELECT order_hash
		FROM millrace_outbox FORCE INDEX (by_order)
		WHERE order_hash >= ?
		ORDER BY order_hash
		LIMIT ?`,

	DeleteSent: `
		DELETE o
		FROM ` + mysqlRows + `
		STRAIGHT_JOIN millrace_outbox o FORCE INDEX (PRIMARY) ON o.id = j.id AND o.created_at = j.at
		WHERE o.status IN (0, 1, 2) AND ` + relayAlive + `?)`,
	KeepSent: `
		UPDATE ` + mysqlRows + `
		STRAIGHT_JOIN millrace_outbox o FORCE INDEX (PRIMARY) ON o.id = j.id AND o.created_at = j.at
		SET o.status = 4, o.blocked_key = NULL, o.sent_at = {now}, o.due_at = {now} + ?
		WHERE o.status IN (0, 1, 2) AND ` + relayAlive + `?)`,
	SetAside: `
		UPDATE ` + mysqlAsides + `
		STRAIGHT_JOIN millrace_outbox o FORCE INDEX (PRIMARY) ON o.id = j.id AND o.created_at = j.at
		SET o.status = j.status, o.due_at = {now} + j.delay, o.attempts = j.attempts, o.last_error = j.error,
			o.blocked_key = j.blocks
		WHERE o.status IN (0, 1, 2) AND ` + relayAlive + `?)`,
	Postpone: `
		UPDATE ` + mysqlRows + `
		STRAIGHT_JOIN millrace_outbox o FORCE INDEX (PRIMARY) ON o.id = j.id AND o.created_at = j.at
		SET o.status = 1, o.due_at = {now} + ?, o.last_error = ?,
			o.blocked_key = CASE WHEN o.order_key IS NULL THEN NULL ELSE o.key_hash END
		WHERE o.status IN (0, 1, 2) AND ` + relayAlive + `?)`,
	HoldBack: `
		UPDATE ` + mysqlRows + `
		STRAIGHT_JOIN millrace_outbox o FORCE INDEX (PRIMARY) ON o.id = j.id AND o.created_at = j.at
		SET o.status = 2, o.blocked_key = o.key_hash
		WHERE o.status IN (0, 1) AND ` + relayAlive + `?)`,

	PurgeSent: `
		DELETE FROM millrace_outbox
		WHERE status = 4 AND due_at < ?
		ORDER BY due_at
		LIMIT ?`,
	CountBacklog: `
		SELECT 0 AS status, COUNT(*) AS messages, COALESCE({now} - MIN(created_at), 0) AS age
		FROM (
			SELECT created_at FROM millrace_outbox FORCE INDEX (by_status)
			WHERE status = 0 AND due_at = 0
			ORDER BY id
			LIMIT ?) counted
		UNION ALL
		SELECT 1 AS status, COUNT(*) AS messages, COALESCE({now} - MIN(created_at), 0) AS age
		FROM (
			SELECT created_at FROM millrace_outbox FORCE INDEX (by_status)
			WHERE status = 1
			ORDER BY due_at, id
			LIMIT ?) counted
		UNION ALL
		SELECT 2 AS status, COUNT(*) AS messages, COALESCE({now} - MIN(CASE
			WHEN key_hash IN (SELECT key_hash FROM (
				SELECT CASE WHEN blocked_key IS NOT NULL THEN key_hash END AS key_hash
				FROM millrace_outbox FORCE INDEX (by_status)
				WHERE status = 3
				ORDER BY due_at, id
				LIMIT 10000) parked) THEN NULL
			ELSE created_at END), 0) AS age
		FROM (
			SELECT created_at, key_hash FROM millrace_outbox FORCE INDEX (by_status)
			WHERE status = 2
			ORDER BY due_at, id
			LIMIT ?) counted
		UNION ALL
		SELECT 3 AS status, COUNT(*) AS messages, COALESCE({now} - MIN(created_at), 0) AS age
		FROM (
			SELECT created_at FROM millrace_outbox FORCE INDEX (by_status)
			WHERE status = 3
			ORDER BY due_at, id
			LIMIT ?) counted`,

	// Texts are equal here that differ only in spaces at their end.
	SelectCaused: `
		SELECT id, topic, order_key, uuid, event_type, status, attempts, created_at, sent_at, last_error
		FROM millrace_outbox
		WHERE id >= ? AND id <= ? AND CAST(cause AS BINARY) = CAST(? AS BINARY)
		ORDER BY id
		LIMIT ?`,

	SelectSent: `
		SELECT ` + outboxColumns + `, event_type, created_at, sent_at
		FROM millrace_outbox
		WHERE id > ? AND id <= ? AND status = 4 AND (? IS NULL OR CAST(topic AS BINARY) = CAST(? AS BINARY))
			AND created_at >= ? AND created_at < ?
		ORDER BY id
		LIMIT ?`,
	CountSent: `
		SELECT CAST(topic AS BINARY) AS topic, COUNT(*) AS messages, MIN(created_at) AS first_at, MAX(created_at) AS last_at,
			MAX(id) AS last_id
		FROM millrace_outbox
		WHERE id > ? AND id <= ? AND status = 4 AND (? IS NULL OR CAST(topic AS BINARY) = CAST(? AS BINARY))
			AND created_at >= ? AND created_at < ?
		GROUP BY CAST(topic AS BINARY)
		ORDER BY CAST(topic AS BINARY)`,

	InsertLayout: `
		INSERT INTO millrace_outbox_layout (id, generation, shards, target)
		VALUES (1, 1, ?, ?)
		ON DUPLICATE KEY UPDATE id = id`,
	InsertShards: `
		INSERT INTO millrace_outbox_shards (generation, shard, owner)
		SELECT ?, n.shard, 0 FROM (
			WITH RECURSIVE numbers (shard) AS (SELECT 0 UNION ALL SELECT shard + 1 FROM numbers WHERE shard + 1 < ?)
			SELECT shard FROM numbers) n
		ON DUPLICATE KEY UPDATE shard = n.shard`,
}
