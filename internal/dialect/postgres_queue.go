package dialect

var postgresQueue = Queue{
	// The indexes of these statements do not contain messages that are held or wait for an operator. Each statement
	// repeats all conditions of its index, so that the planner can use it.
	SelectNextDue: `
		SELECT due_at - {now}, in_line
		FROM (
			(SELECT due_at, FALSE AS in_line FROM millrace_messages
			WHERE consumer = $1 AND due_at <= (SELECT {now}) + $2 AND order_key IS NULL AND status NOT IN (5, 6, 7)
			ORDER BY due_at
			LIMIT 1)
			UNION ALL
			(SELECT due_at, TRUE FROM millrace_messages
			WHERE consumer = $3 AND due_at <= (SELECT {now}) + $4 AND order_key IS NOT NULL AND status NOT IN (5, 6, 7)
			ORDER BY due_at
			LIMIT 1)) next
		ORDER BY due_at
		LIMIT 1`,
	SelectDue: `
		SELECT * FROM (
			SELECT ` + messageColumns + `
			FROM millrace_messages m
			WHERE m.consumer = $1 AND m.due_at <= (SELECT {now}) AND m.order_key IS NULL AND m.status NOT IN (5, 6, 7)
			ORDER BY m.due_at
			` + postgresFirst + `$2::BIGINT)
			FOR UPDATE OF m SKIP LOCKED) page
		LIMIT $2`,
	// It reads each order key once, however many of its messages are due. On the comparison of order keys see
	// SelectHeads.
	SelectFront: `
		WITH w AS MATERIALIZED (
			SELECT m.id, m.order_key, m.due_at - {now} AS wait
			FROM millrace_messages m
			WHERE m.consumer = $1 AND m.due_at <= (SELECT {now}) + $2 AND m.order_key IS NOT NULL AND m.status NOT IN (5, 6, 7)
				AND ($1` + postgresPlanned + `
			ORDER BY m.due_at
			LIMIT $3),
		h AS MATERIALIZED (
			SELECT k.order_key, (
				SELECT e.id FROM millrace_messages e
				WHERE e.consumer = $1 AND e.order_key >= k.order_key AND e.order_key <= k.order_key AND e.status NOT IN (5, 6, 7)
				ORDER BY e.order_key, e.id
				LIMIT 1) AS id,
				CASE WHEN $4::BOOLEAN THEN (
					SELECT s.id FROM millrace_messages s
					WHERE s.consumer = $1 AND s.order_key >= k.order_key AND s.order_key <= k.order_key AND s.status IN (5, 6)
					ORDER BY s.order_key, s.id
					LIMIT 1) END AS stuck
			FROM (SELECT DISTINCT order_key FROM w) k)
		SELECT w.id, w.wait, TRUE AS in_line, COALESCE(h.id < w.id OR h.stuck < w.id, FALSE) AS blocked
		FROM w
		LEFT JOIN h ON h.order_key = w.order_key
		UNION ALL
		SELECT * FROM (
			SELECT m.id, m.due_at - {now}, FALSE, FALSE
			FROM millrace_messages m
			WHERE m.consumer = $5 AND m.due_at <= (SELECT {now}) + $6 AND m.order_key IS NULL AND m.status NOT IN (5, 6, 7)
			ORDER BY m.due_at
			LIMIT $7) free
		ORDER BY wait`,
	// It compares order keys by >= and <=: with = the planner would read the primary key in its order
	// if there are few order keys, which makes that look cheap.
	SelectHeads: `
		WITH RECURSIVE k (n, order_key) AS (
			SELECT 1, (
				SELECT s.order_key FROM millrace_messages s
				WHERE s.consumer = $2 AND s.order_key > $3 AND s.status NOT IN (5, 6, 7)
				ORDER BY s.order_key
				LIMIT 1)
			UNION ALL
			SELECT k.n + 1, (
				SELECT s.order_key FROM millrace_messages s
				WHERE s.consumer = $2 AND s.order_key > k.order_key AND s.status NOT IN (5, 6, 7)
				ORDER BY s.order_key
				LIMIT 1)
			FROM k
			WHERE k.order_key IS NOT NULL AND k.n < $4)
		SELECT k.order_key, m.id, CASE WHEN NOT $1::BOOLEAN OR COALESCE(m.id < (
			SELECT s.id FROM millrace_messages s
			WHERE s.consumer = $2 AND s.order_key >= k.order_key AND s.order_key <= k.order_key AND s.status IN (5, 6)
			ORDER BY s.order_key, s.id
			LIMIT 1), TRUE) THEN m.due_at - {now} END AS wait
		FROM k
		JOIN LATERAL (
			SELECT e.id, e.due_at FROM millrace_messages e
			WHERE e.consumer = $2 AND e.order_key >= k.order_key AND e.order_key <= k.order_key AND e.status NOT IN (5, 6, 7)
			ORDER BY e.order_key, e.id
			LIMIT 1) m ON TRUE
		WHERE k.order_key IS NOT NULL AND ($2` + postgresPlanned,
	LockDue: `
		SELECT ` + messageColumns + `
		FROM millrace_messages m
		WHERE m.consumer = ? AND m.id IN (?) AND m.due_at <= (SELECT {now}) AND m.status NOT IN (5, 6, 7)
		ORDER BY m.id
		LIMIT ?
		FOR UPDATE OF m SKIP LOCKED`,
	HandOut: `
		UPDATE millrace_messages
		SET status = 2, due_at = {now} + ?
		WHERE consumer = ? AND message_id IN (?) AND lease_token IN (?) AND status NOT IN (3, 5, 6, 7)`,
	ExtendLeases: `
		UPDATE millrace_messages
		SET due_at = {now} + ?
		WHERE id IN (
			SELECT id FROM millrace_messages
			WHERE consumer = ? AND message_id IN (?) AND lease_token IN (?) AND status NOT IN (5, 6, 7)
			FOR UPDATE SKIP LOCKED)`,
	CompleteLeased: `
		INSERT INTO millrace_claims (consumer, message_id, payload_hash, token, result, processed_at)
		SELECT consumer, message_id, payload_hash, 0, 1, {now}
		FROM millrace_messages
		WHERE consumer = ? AND message_id IN (?) AND lease_token IN (?) AND status NOT IN (3, 5, 6, 7)
		ON CONFLICT (consumer, message_id) DO UPDATE SET processed_at = EXCLUDED.processed_at, result = 1
			WHERE millrace_claims.result = 0`,
	DeleteLeased: `
		DELETE FROM millrace_messages
		WHERE consumer = ? AND message_id IN (?) AND lease_token IN (?) AND status NOT IN (3, 5, 6, 7)`,
	SelectOpen: `
		SELECT EXISTS (SELECT 1 FROM millrace_messages WHERE consumer = $1 AND ($1` + postgresPlanned + `)`,
	SelectFirst: `
		SELECT MIN(received_at)
		FROM (
			SELECT * FROM (
				SELECT received_at
				FROM millrace_messages
				WHERE consumer = $1 AND (status, id) > ($2, 0) AND status <= $2
				ORDER BY status, id
				` + postgresFirst + `$3::BIGINT)) page
			LIMIT $3) oldest`,
	SelectAdoptable: `
		SELECT * FROM (
			SELECT ` + messageColumns + `
			FROM millrace_messages m
			WHERE m.consumer = $1 AND (m.lease_token = 0 OR m.due_at <= (SELECT {now}))
			ORDER BY m.status, m.id
			` + postgresFirst + `$2::BIGINT)
			FOR UPDATE OF m SKIP LOCKED) page
		LIMIT $2`,
	KeepClaim: `
		INSERT INTO millrace_claims (consumer, message_id, payload_hash, token, result, processed_at)
		SELECT $1::INT, $2::BYTEA, payload_hash, token, result, processed_at
		FROM millrace_claims
		WHERE consumer = $3 AND message_id = $4 AND result <> 0`,
}

var postgresRemedy = Remedy{
	// With status = … the planner would walk the primary key and filter out all other rows.
	SearchStatus: `
		SELECT CASE WHEN matches THEN id ELSE 0 END AS found, MAX(id) AS last_id, COUNT(*) AS looked
		FROM (
			SELECT m.id, ($1::BYTEA IS NULL OR m.topic = $2) AND m.received_at >= $3 AND m.received_at < $4 AS matches
			FROM millrace_messages m
			WHERE m.consumer = $5 AND (m.status, m.id) > ($6, $7) AND m.status <= $6
			ORDER BY m.status, m.id
			LIMIT $8) page
		GROUP BY found
		ORDER BY found`,
	SearchGroup: `
		SELECT CASE WHEN matches THEN id ELSE 0 END AS found, MAX(id) AS last_id, COUNT(*) AS looked
		FROM (
			SELECT m.id, ($1::BYTEA IS NULL OR m.topic = $2) AND m.received_at >= $3 AND m.received_at < $4
				AND m.status BETWEEN $5 AND $6 AS matches
			FROM millrace_messages m
			WHERE m.consumer = $7 AND m.error_group = $8 AND m.id > $9
			ORDER BY m.id
			LIMIT $10) page
		GROUP BY found
		ORDER BY found`,
	SearchStatusBack: `
		SELECT CASE WHEN matches THEN id ELSE 0 END AS found, MIN(id) AS last_id, COUNT(*) AS looked
		FROM (
			SELECT m.id, ($1::BYTEA IS NULL OR m.topic = $2) AND m.received_at >= $3 AND m.received_at < $4 AS matches
			FROM millrace_messages m
			WHERE m.consumer = $5 AND (m.status, m.id) < ($6, $7) AND m.status >= $6
			ORDER BY m.status DESC, m.id DESC
			LIMIT $8) page
		GROUP BY found
		ORDER BY found`,
	SearchGroupBack: `
		SELECT CASE WHEN matches THEN id ELSE 0 END AS found, MIN(id) AS last_id, COUNT(*) AS looked
		FROM (
			SELECT m.id, ($1::BYTEA IS NULL OR m.topic = $2) AND m.received_at >= $3 AND m.received_at < $4
				AND m.status BETWEEN $5 AND $6 AS matches
			FROM millrace_messages m
			WHERE m.consumer = $7 AND (m.error_group, m.id) < ($8, $9) AND m.error_group >= $8
			ORDER BY m.error_group DESC, m.id DESC
			LIMIT $10) page
		GROUP BY found
		ORDER BY found`,
	GroupFailures: `
		SELECT CASE WHEN matches THEN error_group ELSE 0 END AS group_id, COUNT(*) AS failures,
			MIN(received_at) AS first_at, MAX(received_at) AS last_at, MAX(id) AS example
		FROM (
			SELECT m.id, m.error_group, m.received_at, m.error_group IS NOT NULL AND ($1::BYTEA IS NULL OR m.topic = $2)
				AND m.received_at >= $3 AND m.received_at < $4 AS matches
			FROM millrace_messages m
			WHERE m.consumer = $5 AND (m.status, m.id) > ($6, 0) AND m.status <= $6
			ORDER BY m.status DESC, m.id DESC
			LIMIT $7) page
		GROUP BY group_id
		ORDER BY failures DESC
		LIMIT $8`,
	GroupFailure: `
		SELECT CASE WHEN matches THEN error_group ELSE 0 END AS group_id, COUNT(*) AS failures,
			MIN(received_at) AS first_at, MAX(received_at) AS last_at, MAX(id) AS example
		FROM (
			SELECT m.id, m.error_group, m.received_at, ($1::BYTEA IS NULL OR m.topic = $2)
				AND m.received_at >= $3 AND m.received_at < $4 AND m.status BETWEEN $5 AND $6 AS matches
			FROM millrace_messages m
			WHERE m.consumer = $7 AND m.error_group = $8
			ORDER BY m.id DESC
			LIMIT $9) page
		GROUP BY group_id`,

	CountStatus: `
		SELECT COUNT(*)
		FROM (
			SELECT * FROM (
				SELECT id FROM millrace_messages
				WHERE consumer = $1 AND (status, id) > ($2, 0) AND status <= $2
				ORDER BY status, id
				` + postgresFirst + `$3::BIGINT)) page
			LIMIT $3) counted`,
	CountLapsed: `
		SELECT COUNT(*), COALESCE(SUM(CASE WHEN due_at <= $1 OR status = 2 AND lease_token = 0 THEN 1 ELSE 0 END), 0),
			COALESCE(SUM(CASE WHEN due_at > $2 AND lease_token <> 0 THEN 1 ELSE 0 END), 0)
		FROM (
			SELECT * FROM (
				SELECT status, due_at, lease_token FROM millrace_messages
				WHERE consumer = $3 AND (status, id) > ($4, 0) AND status <= $4
				ORDER BY status, id
				` + postgresFirst + `$5::BIGINT)) page
			LIMIT $5) counted`,
	CountDue: `
		SELECT COUNT(*)
		FROM (
			SELECT * FROM (
				SELECT * FROM (
					SELECT id FROM millrace_messages
					WHERE consumer = $1 AND due_at <= $2 AND order_key IS NULL AND status NOT IN (5, 6, 7) AND status + 0 IN (1, 4)
					ORDER BY due_at
					` + postgresFirst + `$3::BIGINT)) free
				LIMIT $3) free
			UNION ALL
			SELECT * FROM (
				SELECT * FROM (
					SELECT id FROM millrace_messages
					WHERE consumer = $4 AND due_at <= $5 AND order_key IS NOT NULL AND status NOT IN (5, 6, 7) AND status + 0 IN (1, 4)
					ORDER BY due_at
					` + postgresFirst + `$6::BIGINT)) lined
				LIMIT $6) lined) counted`,
	SelectOldest: `
		SELECT COALESCE(MIN(CASE
			WHEN due_at > $1::BIGINT AND lease_token = 0 THEN CASE WHEN status <> 1 THEN received_at END
			WHEN status <> 4 OR attempts > 0 THEN received_at
			WHEN lease_token = 0 THEN due_at END), $2::BIGINT)
		FROM (
			SELECT * FROM (
				SELECT status, attempts, due_at, lease_token, received_at
				FROM millrace_messages
				WHERE consumer = $3 AND (status, id) > ($4, 0) AND status <= $4
				ORDER BY status, id
				` + postgresFirst + `$5::BIGINT)) page
			LIMIT $5) oldest`,
	CountOutcomes: `
		SELECT COUNT(*), COALESCE(MIN(created_at), $1::BIGINT)
		FROM (
			SELECT created_at FROM millrace_outcomes
			WHERE consumer = $2
			ORDER BY consumer, message_id
			LIMIT $3) counted`,

	ListAudit: `
		SELECT id
		FROM millrace_audit
		WHERE (consumer, id) < ($1, $2) AND consumer >= $1
		ORDER BY consumer DESC, id DESC
		LIMIT $3`,
	OldestAudit: `
		SELECT id, at, messages
		FROM millrace_audit
		WHERE (consumer, id) > ($1, 0) AND consumer <= $1
		ORDER BY consumer, id
		LIMIT $2`,
}
