package dialect

var sqliteQueue = Queue{
	SelectDue: `
		SELECT ` + messageColumns + `
		FROM millrace_messages m
		WHERE m.consumer = ? AND m.due_at <= {now} AND m.status IN (1, 2, 3, 4) AND (m.order_key IS NULL OR NOT EXISTS (
			SELECT 1 FROM millrace_messages e
			WHERE e.consumer = m.consumer AND e.order_key = m.order_key AND e.id < m.id AND e.status NOT IN (?, ?, 7)))
		ORDER BY m.due_at
		LIMIT ?`,
	// Each order key is looked at once, however many of its messages are due: what it holds is read to
	// find its first.
	SelectFront: `
		WITH w AS MATERIALIZED (
			SELECT m.id, m.order_key, m.due_at - {now} AS wait
			FROM millrace_messages m
			WHERE m.consumer = ?1 AND m.due_at <= {now} + ?2 AND m.status IN (1, 2, 3, 4)
			ORDER BY m.due_at
			LIMIT ?3),
		h AS MATERIALIZED (
			SELECT k.order_key, (
				SELECT e.id FROM millrace_messages e
				WHERE e.consumer = ?1 AND e.order_key = k.order_key AND e.status NOT IN (?4, ?5, 7)
				ORDER BY e.id
				LIMIT 1) AS id
			FROM (SELECT DISTINCT order_key FROM w WHERE order_key IS NOT NULL) k)
		SELECT w.id, w.wait, w.order_key IS NOT NULL AND (h.id IS NULL OR h.id < w.id) AS blocked
		FROM w
		LEFT JOIN h ON h.order_key = w.order_key
		ORDER BY w.wait`,
	SelectHeads: `
		WITH RECURSIVE k (n, order_key) AS (
			SELECT 1, (
				SELECT s.order_key FROM millrace_messages s
				WHERE s.consumer = ?3 AND s.order_key > ?4
				ORDER BY s.order_key
				LIMIT 1)
			UNION ALL
			SELECT k.n + 1, (
				SELECT s.order_key FROM millrace_messages s
				WHERE s.consumer = ?3 AND s.order_key > k.order_key
				ORDER BY s.order_key
				LIMIT 1)
			FROM k
			WHERE k.order_key IS NOT NULL AND k.n < ?5)
		SELECT k.order_key, m.id, CASE WHEN m.status IN (1, 2, 3, 4) THEN m.due_at - {now} END AS wait
		FROM k
		LEFT JOIN millrace_messages m ON m.id = (
			SELECT e.id FROM millrace_messages e
			WHERE e.consumer = ?3 AND e.order_key = k.order_key AND e.status NOT IN (?1, ?2, 7)
			ORDER BY e.id
			LIMIT 1)
		WHERE k.order_key IS NOT NULL`,
	SelectFree: `
		SELECT m.id, m.due_at - {now} AS wait
		FROM millrace_messages m
		WHERE m.consumer = ?1 AND m.order_key IS NULL AND m.due_at <= {now} + ?2 AND m.status IN (1, 2, 3, 4)
		ORDER BY m.due_at
		LIMIT ?3`,
	LockDue: `
		SELECT ` + messageColumns + `
		FROM millrace_messages m
		WHERE m.consumer = ? AND m.id IN (?) AND m.due_at <= {now} AND m.status IN (1, 2, 3, 4)
		ORDER BY m.id
		LIMIT ?`,
	HandOut: `
		UPDATE millrace_messages
		SET status = 2, due_at = {now} + ?
		WHERE consumer = ? AND message_id IN (?) AND lease_token = ? AND status IN (1, 2, 4)`,
	ExtendLeases: `
		UPDATE millrace_messages
		SET due_at = {now} + ?
		WHERE consumer = ? AND message_id IN (?) AND lease_token = ? AND status IN (1, 2, 3, 4)`,
	CompleteLeased: `
		INSERT INTO millrace_claims (consumer, message_id, payload_hash, token, result, processed_at)
		SELECT consumer, message_id, payload_hash, 0, 1, {now}
		FROM millrace_messages
		WHERE consumer = ? AND message_id IN (?) AND lease_token = ? AND status IN (1, 2, 4)
		ON CONFLICT (consumer, message_id) DO UPDATE SET processed_at = EXCLUDED.processed_at, result = 1
			WHERE millrace_claims.result = 0`,
	DeleteLeased: `
		DELETE FROM millrace_messages
		WHERE consumer = ? AND message_id IN (?) AND lease_token = ? AND status IN (1, 2, 4)`,
	SelectAdoptable: `
		SELECT ` + messageColumns + `
		FROM millrace_messages m
		WHERE m.consumer = ? AND (m.lease_token = 0 OR m.due_at <= {now})
		ORDER BY m.due_at
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
		SELECT COUNT(*), COALESCE(SUM(CASE WHEN due_at <= ? THEN 1 ELSE 0 END), 0),
			COALESCE(SUM(CASE WHEN due_at > ? AND lease_token <> 0 THEN 1 ELSE 0 END), 0)
		FROM (
			SELECT due_at, lease_token FROM millrace_messages INDEXED BY ix_millrace_messages_status
			WHERE consumer = ? AND status = ?
			ORDER BY id
			LIMIT ?) counted`,
	CountDue: `
		SELECT COUNT(*)
		FROM (
			SELECT id FROM millrace_messages
			WHERE consumer = ? AND due_at <= ? AND status IN (1, 4)
			ORDER BY due_at
			LIMIT ?) counted`,
	SelectOldest: `
		SELECT received_at
		FROM millrace_messages INDEXED BY ix_millrace_messages_status
		WHERE consumer = ? AND status = ?
		ORDER BY id
		LIMIT 1`,

	ListAudit: `
		SELECT id
		FROM millrace_audit INDEXED BY ix_millrace_audit_consumer
		WHERE consumer = ? AND id < ?
		ORDER BY id DESC
		LIMIT ?`,
}
