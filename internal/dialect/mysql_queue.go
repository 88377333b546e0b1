package dialect

var mysqlQueue = Queue{
	StoreMessage: `
		INSERT INTO millrace_messages (consumer, message_id, status, topic, partition_no, offset_no, order_key, event_type,
			event_version, uuid, metadata, payload, payload_hash, reason, original, payload_form, payload_ref, received_at, due_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ` + mysqlNow + `, ` + mysqlNow + ` + ?)
		ON DUPLICATE KEY UPDATE id = id`,
	SelectStored: `
		SELECT payload_hash
		FROM millrace_messages
		WHERE consumer = ? AND message_id = ?`,
	SelectNextDue: `
		SELECT due_at - ` + mysqlNow + `, order_key IS NOT NULL
		FROM millrace_messages
		WHERE consumer = ? AND due_at <= ` + mysqlNow + ` + ? AND status IN (1, 2, 3, 4)
		ORDER BY due_at
		LIMIT 1`,
	// The first of an order key is asked for: with NOT EXISTS InnoDB reads the key to its end, to see
	// whether there is another one before the message.
	SelectDue: `
		SELECT ` + messageColumns + `
		FROM millrace_messages m
		WHERE m.consumer = ? AND m.due_at <= ` + mysqlNow + ` AND m.status IN (1, 2, 3, 4) AND (m.order_key IS NULL OR m.id = (
			SELECT e.id FROM millrace_messages e FORCE INDEX (by_order)
			WHERE e.consumer = m.consumer AND e.order_key = m.order_key AND e.status NOT IN (?, ?, 7)
			ORDER BY e.id
			LIMIT 1))
		ORDER BY m.due_at
		LIMIT ?
		FOR UPDATE SKIP LOCKED`,
	// Each order key is looked at once, however many of its messages are due: what it holds is read to
	// find its first. MariaDB reads w for each of its names.
	SelectFront: `
		WITH w AS (
			SELECT m.id, m.consumer, m.order_key, m.due_at - ` + mysqlNow + ` AS wait
			FROM millrace_messages m
			WHERE m.consumer = ? AND m.due_at <= ` + mysqlNow + ` + ? AND m.status IN (1, 2, 3, 4)
			ORDER BY m.due_at
			LIMIT ?)
		SELECT w.id, w.wait, w.order_key IS NOT NULL AND (h.id IS NULL OR h.id < w.id) AS blocked
		FROM w
		LEFT JOIN (
			SELECT k.order_key, (
				SELECT e.id FROM millrace_messages e FORCE INDEX (by_order)
				WHERE e.consumer = k.consumer AND e.order_key = k.order_key AND e.status NOT IN (?, ?, 7)
				ORDER BY e.id
				LIMIT 1) AS id
			FROM (SELECT DISTINCT consumer, order_key FROM w WHERE order_key IS NOT NULL) k) h ON h.order_key = w.order_key
		ORDER BY w.wait`,
	// Only a group by the leading columns of the index is read by skipping from one to the next.
	SelectHeads: `
		SELECT h.order_key, m.id, CASE WHEN m.status IN (1, 2, 3, 4) THEN m.due_at - ` + mysqlNow + ` END AS wait
		FROM (
			SELECT k.order_key, (
				SELECT e.id FROM millrace_messages e FORCE INDEX (by_order)
				WHERE e.consumer = k.consumer AND e.order_key = k.order_key AND e.status NOT IN (?, ?, 7)
				ORDER BY e.id
				LIMIT 1) AS id
			FROM (
				SELECT consumer, order_key
				FROM millrace_messages FORCE INDEX (by_order)
				WHERE consumer = ? AND order_key > ?
				GROUP BY consumer, order_key
				ORDER BY consumer, order_key
				LIMIT ?) k) h
		LEFT JOIN millrace_messages m ON m.id = h.id`,
	SelectFree: `
		SELECT m.id, m.due_at - ` + mysqlNow + ` AS wait
		FROM millrace_messages m FORCE INDEX (by_order)
		WHERE m.consumer = ? AND m.order_key IS NULL AND m.due_at <= ` + mysqlNow + ` + ? AND m.status IN (1, 2, 3, 4)
		ORDER BY m.due_at
		LIMIT ?`,
	LockDue: `
		SELECT ` + messageColumns + `
		FROM millrace_messages m FORCE INDEX (PRIMARY)
		WHERE m.consumer = ? AND m.id IN (?) AND m.due_at <= ` + mysqlNow + ` AND m.status IN (1, 2, 3, 4)
		ORDER BY m.id
		LIMIT ?
		FOR UPDATE SKIP LOCKED`,
	SelectSettled: `
		SELECT c.message_id, c.payload_hash, c.result
		FROM millrace_claims c
		WHERE c.consumer = ? AND c.message_id IN (?) AND c.result <> 0 AND NOT EXISTS (
			SELECT 1 FROM millrace_outcomes o WHERE o.consumer = c.consumer AND o.message_id = c.message_id)`,
	// Several rows by their keys are found by the keys: MariaDB would rather go by the status, and lock
	// entries of that index before rows, where a handler's transaction that closes its own row does
	// it the other way round.
	LeaseMessages: `
		UPDATE millrace_messages FORCE INDEX (by_key)
		SET attempts = attempts + ?, lease_token = ?, due_at = ` + mysqlNow + ` + ?
		WHERE consumer = ? AND message_id IN (?)`,
	LeaseOut: `
		UPDATE millrace_messages FORCE INDEX (by_key)
		SET status = CASE WHEN status = 3 THEN status ELSE 2 END, lease_token = ?, due_at = ` + mysqlNow + ` + ?
		WHERE consumer = ? AND message_id IN (?)`,
	Unlease: `
		UPDATE millrace_messages FORCE INDEX (by_key)
		SET attempts = attempts - 1, lease_token = 0, due_at = ` + mysqlNow + `
		WHERE consumer = ? AND message_id IN (?) AND lease_token = ?`,
	HandOut: `
		UPDATE millrace_messages FORCE INDEX (by_key)
		SET status = 2, due_at = ` + mysqlNow + ` + ?
		WHERE consumer = ? AND message_id IN (?) AND lease_token = ? AND status IN (1, 2, 4)`,
	ExtendLeases: `
		UPDATE millrace_messages FORCE INDEX (by_key)
		SET due_at = ` + mysqlNow + ` + ?
		WHERE consumer = ? AND message_id IN (?) AND lease_token = ? AND status IN (1, 2, 3, 4)`,
	PutBack: `
		UPDATE millrace_messages FORCE INDEX (by_key)
		SET due_at = ` + mysqlNow + `, lease_token = 0,
			status = CASE WHEN status <> 2 THEN status WHEN attempts = 0 THEN 1 ELSE 4 END
		WHERE consumer = ? AND message_id IN (?) AND lease_token = ?`,
	MoveLeased: `
		UPDATE millrace_messages
		SET status = ?, attempts = ?, last_error = ?, error_group = ?, reason = ?,
			due_at = ` + mysqlNow + ` + ?, lease_token = 0
		WHERE consumer = ? AND message_id = ? AND lease_token = ? AND status IN (1, 2, 3, 4)`,
	ParkLeased: `
		UPDATE millrace_messages
		SET status = 6, order_key = NULL, reason = ?, due_at = ` + mysqlNow + ` + ?, lease_token = 0
		WHERE consumer = ? AND message_id = ? AND lease_token = ? AND status IN (1, 2, 3, 4)`,
	NameLeased: `
		UPDATE millrace_messages
		SET message_id = ?, payload_hash = ?, original = ?, status = ?, attempts = 0, reason = ?,
			due_at = ` + mysqlNow + ` + ?, lease_token = 0
		WHERE consumer = ? AND message_id = ? AND lease_token = ? AND status IN (1, 2, 4)`,
	CloseLeased: `
		DELETE FROM millrace_messages
		WHERE consumer = ? AND message_id = ? AND lease_token = ? AND status IN (1, 2, 3, 4)`,
	CompleteLeased: `
		INSERT INTO millrace_claims (consumer, message_id, payload_hash, token, result, processed_at)
		SELECT consumer, message_id, payload_hash, 0, 1, ` + mysqlNow + `
		FROM millrace_messages
		WHERE consumer = ? AND message_id IN (?) AND lease_token = ? AND status IN (1, 2, 4)
		ON DUPLICATE KEY UPDATE
			processed_at = IF(millrace_claims.result = 0, VALUES(processed_at), millrace_claims.processed_at),
			result = IF(millrace_claims.result = 0, 1, millrace_claims.result)`,
	DeleteLeased: `
		DELETE m FROM millrace_messages m FORCE INDEX (by_key)
		WHERE consumer = ? AND message_id IN (?) AND lease_token = ? AND status IN (1, 2, 4)`,
	CompleteClaim: `
		INSERT INTO millrace_claims (consumer, message_id, payload_hash, token, result, processed_at)
		VALUES (?, ?, ?, 0, 1, ` + mysqlNow + `)
		ON DUPLICATE KEY UPDATE
			processed_at = IF(result = 0, VALUES(processed_at), processed_at), result = IF(result = 0, 1, result)`,
	SettleLeased: `
		UPDATE millrace_messages
		SET status = 3, reason = ?
		WHERE consumer = ? AND message_id = ? AND lease_token = ? AND status IN (1, 2, 3, 4)`,
	SelectOlderEpochs: `
		SELECT id
		FROM millrace_consumers
		WHERE namespace = ? AND name = ? AND epoch < ?`,
	SelectOpen: `
		SELECT EXISTS (SELECT 1 FROM millrace_messages WHERE consumer = ?)`,
	SelectAdoptable: `
		SELECT ` + messageColumns + `
		FROM millrace_messages m
		WHERE m.consumer = ? AND (m.lease_token = 0 OR m.due_at <= ` + mysqlNow + `)
		ORDER BY m.due_at
		LIMIT ?
		FOR UPDATE SKIP LOCKED`,
	AdoptMessage: `
		UPDATE millrace_messages
		SET due_at = CASE status WHEN 7 THEN ` + mysqlNow + ` ELSE due_at END, status = CASE status WHEN 7 THEN 1 ELSE status END,
			consumer = ?, message_id = ?
		WHERE consumer = ? AND message_id = ?`,
	AdoptClaim: `
		UPDATE millrace_claims
		SET consumer = ?, message_id = ?
		WHERE consumer = ? AND message_id = ? AND result <> 3`,
	KeepClaim: `
		INSERT INTO millrace_claims (consumer, message_id, payload_hash, token, result, processed_at)
		SELECT ?, ?, payload_hash, token, result, processed_at
		FROM millrace_claims
		WHERE consumer = ? AND message_id = ? AND result <> 0`,
	ParkAdopted: `
		UPDATE millrace_messages
		SET original = ?, order_key = NULL, status = ?, reason = ?, due_at = ` + mysqlNow + ` + ?, lease_token = 0
		WHERE consumer = ? AND message_id = ?`,
	AdoptOutcome: `
		UPDATE millrace_outcomes
		SET consumer = ?, message_id = ?
		WHERE consumer = ? AND message_id = ?`,
	AdoptResult: `
		UPDATE millrace_results
		SET consumer = ?, message_id = ?
		WHERE consumer = ? AND message_id = ?`,
	AdoptJournal: `
		UPDATE millrace_journal
		SET consumer = ?, message_id = ?
		WHERE consumer = ? AND message_id = ?`,
	AdoptHistory: `
		UPDATE millrace_history
		SET consumer = ?, message_id = ?
		WHERE consumer = ? AND message_id = ?`,
}
