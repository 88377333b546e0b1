package dialect

var sqliteQueue = Queue{
	// The indexes of these statements do not contain messages that are held or wait for an operator.
	SelectNextDue: `
		SELECT due_at - {now}, in_line
		FROM (
			SELECT * FROM (
				SELECT due_at, FALSE AS in_line
				FROM millrace_messages INDEXED BY ix_millrace_messages_free
				WHERE consumer = ? AND due_at <= {now} + ? AND order_key IS NULL AND status IN (1, 2, 3, 4)
				ORDER BY due_at
				LIMIT 1)
			UNION ALL
			SELECT * FROM (
				SELECT due_at, TRUE
				FROM millrace_messages INDEXED BY ix_millrace_messages_lined
				WHERE consumer = ? AND due_at <= {now} + ? AND order_key IS NOT NULL AND status IN (1, 2, 3, 4)
				ORDER BY due_at
				LIMIT 1)) page
		ORDER BY due_at
		LIMIT 1`,
	SelectDue: `
		SELECT ` + messageColumns + `
		FROM millrace_messages m INDEXED BY ix_millrace_messages_free
		WHERE m.consumer = ? AND m.due_at <= {now} AND m.order_key IS NULL AND m.status IN (1, 2, 3, 4)
		ORDER BY m.due_at
		LIMIT ?`,
	// It reads each order key once, however many of its messages are due.
	SelectFront: `
		WITH w AS MATERIALIZED (
			SELECT m.id, m.order_key, m.due_at - {now} AS wait
			FROM millrace_messages m INDEXED BY ix_millrace_messages_lined
			WHERE m.consumer = ?1 AND m.due_at <= {now} + ?2 AND m.order_key IS NOT NULL AND m.status IN (1, 2, 3, 4)
			ORDER BY m.due_at
			LIMIT ?3),
		h AS MATERIALIZED (
			SELECT k.order_key, (
				SELECT e.id FROM millrace_messages e INDEXED BY ix_millrace_messages_line
				WHERE e.consumer = ?1 AND e.order_key = k.order_key AND e.status IN (1, 2, 3, 4)
				ORDER BY e.id
				LIMIT 1) AS id,
				CASE WHEN ?4 THEN (
					SELECT s.id FROM millrace_messages s INDEXED BY ix_millrace_messages_stuck
					WHERE s.consumer = ?1 AND s.order_key = k.order_key AND s.status IN (5, 6)
					ORDER BY s.id
					LIMIT 1) END AS stuck
			FROM (SELECT DISTINCT order_key FROM w) k)
		SELECT w.id, w.wait, TRUE AS in_line, COALESCE(h.id < w.id OR h.stuck < w.id, FALSE) AS blocked
		FROM w
		LEFT JOIN h ON h.order_key = w.order_key
		UNION ALL
		SELECT * FROM (
			SELECT m.id, m.due_at - {now}, FALSE, FALSE
			FROM millrace_messages m INDEXED BY ix_millrace_messages_free
			WHERE m.consumer = ?5 AND m.due_at <= {now} + ?6 AND m.order_key IS NULL AND m.status IN (1, 2, 3, 4)
			ORDER BY m.due_at
			LIMIT ?7)
		ORDER BY wait`,
	SelectHeads: `
		WITH RECURSIVE k (n, order_key) AS (
			SELECT 1, (
				SELECT s.order_key FROM millrace_messages s INDEXED BY ix_millrace_messages_line
				WHERE s.consumer = ?2 AND s.order_key > ?3 AND s.status IN (1, 2, 3, 4)
				ORDER BY s.order_key
				LIMIT 1)
			UNION ALL
			SELECT k.n + 1, (
				SELECT s.order_key FROM millrace_messages s INDEXED BY ix_millrace_messages_line
				WHERE s.consumer = ?2 AND s.order_key > k.order_key AND s.status IN (1, 2, 3, 4)
				ORDER BY s.order_key
				LIMIT 1)
			FROM k
			WHERE k.order_key IS NOT NULL AND k.n < ?4)
		SELECT k.order_key, m.id, CASE WHEN NOT ?1 OR COALESCE(m.id < (
			SELECT s.id FROM millrace_messages s INDEXED BY ix_millrace_messages_stuck
			WHERE s.consumer = ?2 AND s.order_key = k.order_key AND s.status IN (5, 6)
			ORDER BY s.id
			LIMIT 1), TRUE) THEN m.due_at - {now} END AS wait
		FROM k
		CROSS JOIN millrace_messages m
		WHERE k.order_key IS NOT NULL AND m.id = (
			SELECT e.id FROM millrace_messages e INDEXED BY ix_millrace_messages_line
			WHERE e.consumer = ?2 AND e.order_key = k.order_key AND e.status IN (1, 2, 3, 4)
			ORDER BY e.id
			LIMIT 1)`,
	LockDue: `
		SELECT ` + messageColumns + `
		FROM millrace_messages m
		WHERE m.consumer = ? AND m.id IN (?) AND m.due_at <= {now} AND m.status IN (1, 2, 3, 4)
		ORDER BY m.id
		LIMIT ?`,
	HandOut: `
		UPDATE millrace_messages
		SET status = 2, due_at = {now} + ?
		WHERE consumer = ? AND message_id IN (?) AND lease_token IN (?) AND status IN (1, 2, 4)`,
	ExtendLeases: `
		UPDATE millrace_messages
		SET due_at = {now} + ?
		WHERE consumer = ? AND message_id IN (?) AND lease_token IN (?) AND status IN (1, 2, 3, 4)`,
	CompleteLeased: `
		INSERT INTO millrace_claims (consumer, message_id, payload_hash, token, result, processed_at)
		SELECT consumer, message_id, payload_hash, 0, 1, {now}
		FROM millrace_messages
		WHERE consumer = ? AND message_id IN (?) AND lease_token IN (?) AND status IN (1, 2, 4)
		ON CONFLICT (consumer, message_id) DO UPDATE SET processed_at = EXCLUDED.processed_at, result = 1
			WHERE millrace_claims.result = 0`,
	DeleteLeased: `
		DELETE FROM millrace_messages
		WHERE consumer = ? AND message_id IN (?) AND lease_token IN (?) AND status IN (1, 2, 4)`,
	SelectFirst: `
		SELECT MIN(received_at)
		FROM (
			SELECT received_at
			FROM millrace_messages INDEXED BY ix_millrace_messages_status
			WHERE consumer = ? AND status = ?
			ORDER BY id
			LIMIT ?) oldest`,
	SelectAdoptable: `
		SELECT ` + messageColumns + `
		FROM millrace_messages m
		WHERE m.consumer = ? AND (m.lease_token = 0 OR m.due_at <= {now})
		ORDER BY m.status, m.id
		LIMIT ?`,
}

var sqliteRemedy = Remedy{
	SearchStatus: `
		SELECT CASE WHEN matches THEN id ELSE 0 END AS found, MAX(id) AS last_id, COUNT(*) AS looked
		FROM (
			SELECT m.id, (? IS NULL OR m.topic = ?) AND m.received_at >= ? AND m.received_at < ? AS matches
			FROM millrace_messages m INDEXED BY ix_millrace_messages_status
			WHERE m.consumer = ? AND m.status = ? AND m.id > ?
			ORDER BY m.id
			LIMIT ?) page
		GROUP BY found
		ORDER BY found`,
	SearchGroup: `
		SELECT CASE WHEN matches THEN id ELSE 0 END AS found, MAX(id) AS last_id, COUNT(*) AS looked
		FROM (
			SELECT m.id, (? IS NULL OR m.topic = ?) AND m.received_at >= ? AND m.received_at < ?
				AND m.status BETWEEN ? AND ? AS matches
			FROM millrace_messages m INDEXED BY ix_millrace_messages_group
			WHERE m.consumer = ? AND m.error_group = ? AND m.id > ?
			ORDER BY m.id
			LIMIT ?) page
		GROUP BY found
		ORDER BY found`,
	SearchStatusBack: `
		SELECT CASE WHEN matches THEN id ELSE 0 END AS found, MIN(id) AS last_id, COUNT(*) AS looked
		FROM (
			SELECT m.id, (? IS NULL OR m.topic = ?) AND m.received_at >= ? AND m.received_at < ? AS matches
			FROM millrace_messages m INDEXED BY ix_millrace_messages_status
			WHERE m.consumer = ? AND m.status = ? AND m.id < ?
			ORDER BY m.id DESC
			LIMIT ?) page
		GROUP BY found
		ORDER BY found`,
	SearchGroupBack: `
		SELECT CASE WHEN matches THEN id ELSE 0 END AS found, MIN(id) AS last_id, COUNT(*) AS looked
		FROM (
			SELECT m.id, (? IS NULL OR m.topic = ?) AND m.received_at >= ? AND m.received_at < ?
				AND m.status BETWEEN ? AND ? AS matches
			FROM millrace_messages m INDEXED BY ix_millrace_messages_group
			WHERE m.consumer = ? AND m.error_group = ? AND m.id < ?
			ORDER BY m.id DESC
			LIMIT ?) page
		GROUP BY found
		ORDER BY found`,
	GroupFailures: `
		SELECT CASE WHEN matches THEN error_group ELSE 0 END AS group_id, COUNT(*) AS failures,
			MIN(received_at) AS first_at, MAX(received_at) AS last_at, MAX(id) AS example
		FROM (
			SELECT m.id, m.error_group, m.received_at, m.error_group IS NOT NULL AND (? IS NULL OR m.topic = ?)
				AND m.received_at >= ? AND m.received_at < ? AS matches
			FROM millrace_messages m INDEXED BY ix_millrace_messages_status
			WHERE m.consumer = ? AND m.status = ?
			ORDER BY m.id DESC
			LIMIT ?) page
		GROUP BY group_id
		ORDER BY failures DESC
		LIMIT ?`,
	GroupFailure: `
		SELECT CASE WHEN matches THEN error_group ELSE 0 END AS group_id, COUNT(*) AS failures,
			MIN(received_at) AS first_at, MAX(received_at) AS last_at, MAX(id) AS example
		FROM (
			SELECT m.id, m.error_group, m.received_at, (? IS NULL OR m.topic = ?)
				AND m.received_at >= ? AND m.received_at < ? AND m.status BETWEEN ? AND ? AS matches
			FROM millrace_messages m INDEXED BY ix_millrace_messages_group
			WHERE m.consumer = ? AND m.error_group = ?
			ORDER BY m.id DESC
			LIMIT ?) page
		GROUP BY group_id`,

	ServeConsumer: `
		UPDATE millrace_consumers
		SET served_until = MAX(served_until, {now} + ?)
		WHERE id = ?`,

	CountStatus: `
		SELECT COUNT(*)
		FROM (
			SELECT id FROM millrace_messages INDEXED BY ix_millrace_messages_status
			WHERE consumer = ? AND status = ?
			ORDER BY id
			LIMIT ?) counted`,
	CountLapsed: `
		SELECT COUNT(*), COALESCE(SUM(CASE WHEN due_at <= ? OR status = 2 AND lease_token = 0 THEN 1 ELSE 0 END), 0),
			COALESCE(SUM(CASE WHEN due_at > ? AND lease_token <> 0 THEN 1 ELSE 0 END), 0)
		FROM (
			SELECT status, due_at, lease_token FROM millrace_messages INDEXED BY ix_millrace_messages_status
			WHERE consumer = ? AND status = ?
			ORDER BY id
			LIMIT ?) counted`,
	CountDue: `
		SELECT COUNT(*)
		FROM (
			SELECT * FROM (
				SELECT id FROM millrace_messages INDEXED BY ix_millrace_messages_free
				WHERE consumer = ? AND due_at <= ? AND order_key IS NULL AND status IN (1, 2, 3, 4) AND status IN (1, 4)
				ORDER BY due_at
				LIMIT ?)
			UNION ALL
			SELECT * FROM (
				SELECT id FROM millrace_messages INDEXED BY ix_millrace_messages_lined
				WHERE consumer = ? AND due_at <= ? AND order_key IS NOT NULL AND status IN (1, 2, 3, 4) AND status IN (1, 4)
				ORDER BY due_at
				LIMIT ?)) counted`,
	SelectOldest: `
		SELECT COALESCE(MIN(CASE
			WHEN due_at > ? AND lease_token = 0 THEN CASE WHEN status <> 1 THEN received_at END
			WHEN status <> 4 OR attempts > 0 THEN received_at
			WHEN lease_token = 0 THEN due_at END), ?)
		FROM (
			SELECT status, attempts, due_at, lease_token, received_at
			FROM millrace_messages INDEXED BY ix_millrace_messages_status
			WHERE consumer = ? AND status = ?
			ORDER BY id
			LIMIT ?) oldest`,

	ListAudit: `
		SELECT id
		FROM millrace_audit INDEXED BY ix_millrace_audit_consumer
		WHERE consumer = ? AND id < ?
		ORDER BY id DESC
		LIMIT ?`,
	OldestAudit: `
		SELECT id, at, messages
		FROM millrace_audit INDEXED BY ix_millrace_audit_consumer
		WHERE consumer = ?
		ORDER BY id
		LIMIT ?`,
}
