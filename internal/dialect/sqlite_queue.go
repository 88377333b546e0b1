package dialect

var sqliteQueue = Queue{
	StoreMessage: `
		INSERT INTO millrace_messages (consumer, message_id, status, topic, partition_no, offset_no, order_key, event_type,
			event_version, uuid, metadata, payload, payload_hash, reason, original, payload_form, payload_ref, received_at, due_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ` + sqliteNow + `, ` + sqliteNow + ` + ?)
		ON CONFLICT (consumer, message_id) DO NOTHING`,
	SelectStored: `
		SELECT payload_hash
		FROM millrace_messages
		WHERE consumer = ? AND message_id = ?`,
	SelectNextDue: `
		SELECT due_at - ` + sqliteNow + `, order_key IS NOT NULL
		FROM millrace_messages
		WHERE consumer = ? AND due_at <= ` + sqliteNow + ` + ? AND status IN (1, 2, 3, 4)
		ORDER BY due_at
		LIMIT 1`,
	SelectDue: `
		SELECT ` + messageColumns + `
		FROM millrace_messages m
		WHERE m.consumer = ? AND m.due_at <= ` + sqliteNow + ` AND m.status IN (1, 2, 3, 4) AND (m.order_key IS NULL OR NOT EXISTS (
			SELECT 1 FROM millrace_messages e
			WHERE e.consumer = m.consumer AND e.order_key = m.order_key AND e.id < m.id AND e.status NOT IN (?, ?, 7)))
		ORDER BY m.due_at
		LIMIT ?`,
	// Each order key is looked at once, however many of its messages are due: what it holds is read to
	// find its first.
	SelectFront: `
		WITH w AS MATERIALIZED (
			SELECT m.id, m.order_key, m.due_at - ` + sqliteNow + ` AS wait
			FROM millrace_messages m
			WHERE m.consumer = ?1 AND m.due_at <= ` + sqliteNow + ` + ?2 AND m.status IN (1, 2, 3, 4)
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
		SELECT k.order_key, m.id, CASE WHEN m.status IN (1, 2, 3, 4) THEN m.due_at - ` + sqliteNow + ` END AS wait
		FROM k
		LEFT JOIN millrace_messages m ON m.id = (
			SELECT e.id FROM millrace_messages e
			WHERE e.consumer = ?3 AND e.order_key = k.order_key AND e.status NOT IN (?1, ?2, 7)
			ORDER BY e.id
			LIMIT 1)
		WHERE k.order_key IS NOT NULL`,
	SelectFree: `
		SELECT m.id, m.due_at - ` + sqliteNow + ` AS wait
		FROM millrace_messages m
		WHERE m.consumer = ?1 AND m.order_key IS NULL AND m.due_at <= ` + sqliteNow + ` + ?2 AND m.status IN (1, 2, 3, 4)
		ORDER BY m.due_at
		LIMIT ?3`,
	LockDue: `
		SELECT ` + messageColumns + `
		FROM millrace_messages m
		WHERE m.consumer = ? AND m.id IN (?) AND m.due_at <= ` + sqliteNow + ` AND m.status IN (1, 2, 3, 4)
		ORDER BY m.id
		LIMIT ?`,
	SelectSettled: `
		SELECT c.message_id, c.payload_hash, c.result
		FROM millrace_claims c
		WHERE c.consumer = ? AND c.message_id IN (?) AND c.result <> 0 AND NOT EXISTS (
			SELECT 1 FROM millrace_outcomes o WHERE o.consumer = c.consumer AND o.message_id = c.message_id)`,
	LeaseMessages: `
		UPDATE millrace_messages
		SET attempts = attempts + ?, lease_token = ?, due_at = ` + sqliteNow + ` + ?
		WHERE consumer = ? AND message_id IN (?)`,
	LeaseOut: `
		UPDATE millrace_messages
		SET status = CASE WHEN status = 3 THEN status ELSE 2 END, lease_token = ?, due_at = ` + sqliteNow + ` + ?
		WHERE consumer = ? AND message_id IN (?)`,
	Unlease: `
		UPDATE millrace_messages
		SET attempts = attempts - 1, lease_token = 0, due_at = ` + sqliteNow + `
		WHERE consumer = ? AND message_id IN (?) AND lease_token = ?`,
	HandOut: `
		UPDATE millrace_messages
		SET status = 2, due_at = ` + sqliteNow + ` + ?
		WHERE consumer = ? AND message_id IN (?) AND lease_token = ? AND status IN (1, 2, 4)`,
	ExtendLeases: `
		UPDATE millrace_messages
		SET due_at = ` + sqliteNow + ` + ?
		WHERE consumer = ? AND message_id IN (?) AND lease_token = ? AND status IN (1, 2, 3, 4)`,
	PutBack: `
		UPDATE millrace_messages
		SET due_at = ` + sqliteNow + `, lease_token = 0,
			status = CASE WHEN status <> 2 THEN status WHEN attempts = 0 THEN 1 ELSE 4 END
		WHERE consumer = ? AND message_id IN (?) AND lease_token = ?`,
	MoveLeased: `
		UPDATE millrace_messages
		SET status = ?, attempts = ?, last_error = ?, error_group = ?, reason = ?,
			due_at = ` + sqliteNow + ` + ?, lease_token = 0
		WHERE consumer = ? AND message_id = ? AND lease_token = ? AND status IN (1, 2, 3, 4)`,
	ParkLeased: `
		UPDATE millrace_messages
		SET status = 6, order_key = NULL, reason = ?, due_at = ` + sqliteNow + ` + ?, lease_token = 0
		WHERE consumer = ? AND message_id = ? AND lease_token = ? AND status IN (1, 2, 3, 4)`,
	NameLeased: `
		UPDATE millrace_messages
		SET message_id = ?, payload_hash = ?, original = ?, status = ?, attempts = 0, reason = ?,
			due_at = ` + sqliteNow + ` + ?, lease_token = 0
		WHERE consumer = ? AND message_id = ? AND lease_token = ? AND status IN (1, 2, 4)`,
	CloseLeased: `
		DELETE FROM millrace_messages
		WHERE consumer = ? AND message_id = ? AND lease_token = ? AND status IN (1, 2, 3, 4)`,
	CompleteLeased: `
		INSERT INTO millrace_claims (consumer, message_id, payload_hash, token, result, processed_at)
		SELECT consumer, message_id, payload_hash, 0, 1, ` + sqliteNow + `
		FROM millrace_messages
		WHERE consumer = ? AND message_id IN (?) AND lease_token = ? AND status IN (1, 2, 4)
		ON CONFLICT (consumer, message_id) DO UPDATE SET processed_at = EXCLUDED.processed_at, result = 1
			WHERE millrace_claims.result = 0`,
	DeleteLeased: `
		DELETE FROM millrace_messages
		WHERE consumer = ? AND message_id IN (?) AND lease_token = ? AND status IN (1, 2, 4)`,
	CompleteClaim: `
		INSERT INTO millrace_claims (consumer, message_id, payload_hash, token, result, processed_at)
		VALUES (?, ?, ?, 0, 1, ` + sqliteNow + `)
		ON CONFLICT (consumer, message_id) DO UPDATE SET processed_at = EXCLUDED.processed_at, result = 1
			WHERE millrace_claims.result = 0`,
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
		WHERE m.consumer = ? AND (m.lease_token = 0 OR m.due_at <= ` + sqliteNow + `)
		ORDER BY m.due_at
		LIMIT ?`,
	AdoptMessage: `
		UPDATE millrace_messages
		SET due_at = CASE status WHEN 7 THEN ` + sqliteNow + ` ELSE due_at END, status = CASE status WHEN 7 THEN 1 ELSE status END,
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
		SET original = ?, order_key = NULL, status = ?, reason = ?, due_at = ` + sqliteNow + ` + ?, lease_token = 0
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
