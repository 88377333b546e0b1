package dialect

const (
	// The ids of a JSON array, as an array with which an index can be searched.
	postgresIDs = `ANY(ARRAY(SELECT json_array_elements_text($1::JSON)::BIGINT))`

	// The rows of a JSON array of pairs. IS TRUE keeps PostgreSQL from a join: it looks each row that it found by its id up
	// in a hash.
	postgresRows = `ANY(ARRAY(SELECT (one ->> 0)::BIGINT FROM json_array_elements($1::JSON) one))
			AND ((id, created_at) IN (
				SELECT (one ->> 0)::BIGINT, (one ->> 1)::BIGINT FROM json_array_elements($1::JSON) one)) IS TRUE`

	// See postgresPlanned. The outbox is empty most of the time.
	postgresFresh = ` AND ($1` + postgresPlanned

	// True, and a function that no parallel worker may call. PostgreSQL 17 takes the half that one of two workers has for
	// the whole, and so sorts in parallel a table that an index would give in order.
	postgresAlone = ` AND pg_backend_pid() <> 0`
)

// A relay's read must walk an index and stop, however old the statistics are. The planner cannot see the value of a
// LIMIT that is a sub-select or a column of an outer query, so it chooses a plan that starts fast, and does not sort a
// whole backlog or a whole key. The outer LIMIT has a visible value: without it PostgreSQL expects a long result from
// a long table and compiles the statement each time (jit), which takes longer than running it. If there are few keys,
// the planner would walk the primary key to find the messages of one. So these statements order by the columns of the
// index, and compare keys by ranges: with an equality, ordering by id would be enough.
var postgresOutbox = Outbox{
	SelectWhereabouts: `
		SELECT current_database(), applied_at
		FROM millrace_schema
		WHERE version = 1`,
	SelectPending: `
		SELECT o.*,
			CASE WHEN o.order_key IS NOT NULL THEN (
				SELECT id FROM (
					SELECT k.id FROM millrace_outbox k
					WHERE (k.key_hash, k.id) < (o.key_hash, o.id) AND k.key_hash >= o.key_hash
						AND k.order_key IS NOT NULL AND (k.status IN (0, 2) OR k.blocked_key IS NOT NULL)
					ORDER BY k.key_hash DESC, k.id DESC
					LIMIT (SELECT 1)) nearest
				LIMIT 1) END AS behind
		FROM (
			SELECT ` + outboxColumns + `, created_at, {now} - created_at AS age
			FROM millrace_outbox
			WHERE id NOT IN (SELECT json_array_elements_text($1::JSON)::BIGINT)` + postgresFresh + `
				AND status = 0 AND id > $2 AND ($3::BIGINT >> ABS(key_hash % $4)::INTEGER) & 1 <> 0` + postgresAlone + `
			ORDER BY id
			LIMIT (SELECT $5::BIGINT)) o
		ORDER BY id
		LIMIT 10000`,
	SelectFirsts: `
		SELECT j.key AS key_hash, first.id
		FROM (SELECT json_array_elements_text($1::JSON)::BIGINT AS key) j, LATERAL (
			SELECT id FROM millrace_outbox
			WHERE (key_hash, id) > (j.key, 0) AND key_hash <= j.key
				AND order_key IS NOT NULL AND (status IN (0, 2) OR blocked_key IS NOT NULL)` + postgresFresh + `
			ORDER BY key_hash, id
			LIMIT (SELECT 1)) first
		LIMIT 10000`,
	SelectDue: `
		SELECT ` + outboxColumns + `, created_at, {now} - created_at AS age
		FROM millrace_outbox
		WHERE id NOT IN (SELECT json_array_elements_text($1::JSON)::BIGINT)` + postgresFresh + `
			AND status = 1 AND due_at <= (SELECT {now}) AND ($2::BIGINT >> ABS(key_hash % $3)::INTEGER) & 1 <> 0` + postgresAlone + `
		ORDER BY due_at, id
		LIMIT (SELECT $4::BIGINT)`,
	SelectNextDue: `
		SELECT MIN(due_at) - {now}
		FROM (
			SELECT due_at FROM millrace_outbox
			WHERE status = 1 AND ($1::BIGINT >> ABS(key_hash % $2)::INTEGER) & 1 <> 0` + postgresFresh + `
			ORDER BY due_at, id
			LIMIT (SELECT 1)) first`,
	SelectLaterDue: `
		SELECT MIN(due_at) - {now}
		FROM (
			SELECT due_at FROM millrace_outbox
			WHERE status = 1 AND due_at > (SELECT {now}) AND ($1::BIGINT >> ABS(key_hash % $2)::INTEGER) & 1 <> 0` + postgresFresh + `
			ORDER BY due_at, id
			LIMIT (SELECT 1)) first`,
	SelectKnown: `
		SELECT id, key_hash, status, created_at FROM millrace_outbox
		WHERE id = ` + postgresIDs + postgresFresh,
	SelectKey: `
		SELECT o.*
		FROM json_to_recordset($1::JSON) AS j (key BIGINT, after BIGINT, "limit" BIGINT), LATERAL (
			SELECT * FROM (
				SELECT ` + outboxColumns + `, created_at, {now} - created_at AS age
				FROM millrace_outbox
				WHERE (key_hash, id) > (j.key, j.after) AND key_hash <= j.key
					AND order_key IS NOT NULL AND (status IN (0, 2) OR blocked_key IS NOT NULL)` + postgresFresh + `
				ORDER BY key_hash, id
				LIMIT j."limit") begun
			LIMIT $2) o`,
	KeysAreListed: true,
	ListKeys: `
		SELECT key_hash
		FROM millrace_outbox
		WHERE key_hash >= $1 AND order_key IS NOT NULL AND (status IN (0, 2) OR blocked_key IS NOT NULL)` + postgresFresh + `
		ORDER BY key_hash
		LIMIT (SELECT $2::BIGINT)`,

	SelectHighest: `
		SELECT MAX(id)
		FROM millrace_outbox
		WHERE id > $1` + postgresFresh,

	DeleteSent: `
		DELETE FROM millrace_outbox
		WHERE id = ` + postgresRows + postgresFresh + ` AND status IN (0, 1, 2) AND ` + relayAlive + `$2)`,
	KeepSent: `
		UPDATE millrace_outbox
		SET status = 4, blocked_key = NULL, sent_at = {now}, due_at = {now} + $2
		WHERE id = ` + postgresRows + postgresFresh + ` AND status IN (0, 1, 2) AND ` + relayAlive + `$3)`,
	SetAside: `
		UPDATE millrace_outbox o
		SET status = j.status, due_at = {now} + j.delay, attempts = j.attempts, last_error = j.error,
			blocked_key = j.blocks
		FROM json_to_recordset($1::JSON) AS j (
			id BIGINT, at BIGINT, status SMALLINT, delay BIGINT, attempts INTEGER, error TEXT, blocks BIGINT)
		WHERE o.id = j.id AND o.created_at = j.at AND o.status IN (0, 1, 2) AND ` + relayAlive + `$2)
			AND o.id = ANY(ARRAY(SELECT (one ->> 'id')::BIGINT FROM json_array_elements($1::JSON) one))` + postgresFresh,
	Postpone: `
		UPDATE millrace_outbox
		SET status = 1, due_at = {now} + $2, last_error = $3,
			blocked_key = CASE WHEN order_key IS NULL THEN NULL ELSE key_hash END
		WHERE id = ` + postgresRows + postgresFresh + ` AND status IN (0, 1, 2) AND ` + relayAlive + `$4)`,
	HoldBack: `
		UPDATE millrace_outbox
		SET status = 2, blocked_key = key_hash
		WHERE id = ` + postgresRows + postgresFresh + ` AND status IN (0, 1) AND ` + relayAlive + `$2)`,

	SelectParked: `
		SELECT ` + outboxColumns + `, event_type, last_error, due_at AS parked_at
		FROM millrace_outbox
		WHERE status = 3 AND id > $1` + postgresFresh + `
		ORDER BY id
		LIMIT $2`,
	ListParked: `
		SELECT ` + outboxOutline + `, event_type, last_error, due_at AS parked_at
		FROM (
			SELECT id AS page_id FROM millrace_outbox
			WHERE status = 3 AND id > $1` + postgresFresh + `
			ORDER BY id
			LIMIT $2) page
		JOIN millrace_outbox ON id = page_id
		ORDER BY id`,
	SelectState: `
		SELECT status
		FROM millrace_outbox
		WHERE id = $1` + postgresFresh,
	RetryParked: `
		UPDATE millrace_outbox
		SET status = 1, due_at = {now}, attempts = 0
		WHERE id = $1 AND status = 3` + postgresFresh,
	DropParked: `
		DELETE FROM millrace_outbox
		WHERE id = $1 AND status = 3` + postgresFresh,
	PurgeSent: `
		DELETE FROM millrace_outbox
		WHERE id = ANY(ARRAY(
			SELECT id FROM millrace_outbox
			WHERE status = 4 AND due_at < (SELECT $1::BIGINT) AND ($1::BIGINT` + postgresPlanned + `
			ORDER BY due_at, id
			LIMIT (SELECT $2::BIGINT)
			FOR UPDATE SKIP LOCKED))`,
	CountBacklog: `
		SELECT 0 AS status, COUNT(*) AS messages, COALESCE({now} - MIN(created_at), 0) AS age
		FROM (
			SELECT created_at FROM millrace_outbox
			WHERE status = 0 AND ($1::BIGINT` + postgresPlanned + `
			ORDER BY id
			LIMIT (SELECT $1::BIGINT)) counted
		UNION ALL
		SELECT 1 AS status, COUNT(*) AS messages, COALESCE({now} - MIN(created_at), 0) AS age
		FROM (
			SELECT created_at FROM millrace_outbox
			WHERE status = 1
			ORDER BY due_at, id
			LIMIT (SELECT $2::BIGINT)) counted
		UNION ALL
		SELECT 2 AS status, COUNT(*) AS messages, COALESCE({now} - MIN(CASE
			WHEN key_hash IN (
				SELECT CASE WHEN blocked_key IS NOT NULL THEN key_hash END AS key_hash
				FROM millrace_outbox
				WHERE status = 3
				ORDER BY due_at, id
				LIMIT (SELECT 10000::BIGINT)) THEN NULL
			ELSE created_at END), 0) AS age
		FROM (
			SELECT created_at, key_hash FROM millrace_outbox
			WHERE status = 2
			ORDER BY due_at, id
			LIMIT (SELECT $3::BIGINT)) counted
		UNION ALL
		SELECT 3 AS status, COUNT(*) AS messages, COALESCE({now} - MIN(created_at), 0) AS age
		FROM (
			SELECT created_at FROM millrace_outbox
			WHERE status = 3
			ORDER BY due_at, id
			LIMIT (SELECT $4::BIGINT)) counted`,

	SelectNext: `
		SELECT id, created_at
		FROM millrace_outbox
		WHERE id >= $1` + postgresFresh + `
		ORDER BY id
		LIMIT 1`,
	SelectCaused: `
		SELECT id, topic, order_key, uuid, event_type, status, attempts, created_at, sent_at, last_error
		FROM millrace_outbox
		WHERE id >= $1 AND id <= $2 AND cause = $3` + postgresFresh + `
		ORDER BY id
		LIMIT $4`,

	SelectSent: `
		SELECT ` + outboxColumns + `, event_type, created_at, sent_at
		FROM millrace_outbox
		WHERE id > $1 AND id <= $2 AND status = 4 AND ($3::TEXT IS NULL OR topic = $4) AND created_at >= $5 AND created_at < $6` + postgresFresh + `
		ORDER BY id
		LIMIT $7`,
	CountSent: `
		SELECT topic, COUNT(*) AS messages, MIN(created_at) AS first_at, MAX(created_at) AS last_at, MAX(id) AS last_id
		FROM millrace_outbox
		WHERE id > $1 AND id <= $2 AND status = 4 AND ($3::TEXT IS NULL OR topic = $4) AND created_at >= $5 AND created_at < $6` + postgresFresh + `
		GROUP BY topic
		ORDER BY topic`,

	InsertShards: `
		INSERT INTO millrace_outbox_shards (generation, shard, owner)
		SELECT $1::INTEGER, shard, 0 FROM generate_series(0, $2::INTEGER - 1) AS shard
		ON CONFLICT (generation, shard) DO NOTHING`,
	ClaimShards: `
		UPDATE millrace_outbox_shards
		SET owner = $1
		WHERE generation = $2 AND ($3::BIGINT >> shard) & 1 <> 0 AND owner = $4`,

	Notifies: true,
	Notify:   `NOTIFY {channel}`,
	Listen:   `LISTEN {channel}`,
}
