package dialect

var postgresQueue = Queue{
	StoreMessage: `
		INSERT INTO millrace_messages (consumer, message_id, status, topic, partition_no, offset_no, order_key, event_type,
			event_version, uuid, metadata, payload, payload_hash, reason, original, payload_form, payload_ref, received_at, due_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17,
			` + postgresNow + `, ` + postgresNow + ` + $18)
		ON CONFLICT (consumer, message_id) DO NOTHING`,
	SelectStored: `
		SELECT payload_hash
		FROM millrace_messages
		WHERE consumer = $1 AND message_id = $2`,
	// Before the first ANALYZE of a table that filled up, few rows are expected to be IN a list of
	// states: all of them would be sorted for each look, and read from the index of states
	// for each batch. Most are expected to be NOT IN one; and of a sum nothing is known from statistics, either: where
	// nearly all is held or parked, a look would be taken for one at all of it, and be compiled each time (jit), which
	// takes a quarter of a second.
	SelectNextDue: `
		SELECT due_at - ` + postgresNow + `, order_key IS NOT NULL
		FROM millrace_messages
		WHERE consumer = $1 AND due_at <= (SELECT ` + postgresNow + `) + $2 AND status + 0 NOT IN (5, 6, 7)
		ORDER BY due_at
		LIMIT 1`,
	SelectDue: `
		SELECT * FROM (
			SELECT ` + messageColumns + `
			FROM millrace_messages m
			WHERE m.consumer = $1 AND m.due_at <= (SELECT ` + postgresNow + `) AND m.status + 0 NOT IN (5, 6, 7) AND (
				m.order_key IS NULL OR NOT EXISTS (
					SELECT 1 FROM millrace_messages e
					WHERE e.consumer = m.consumer AND e.order_key = m.order_key AND e.id < m.id AND e.status + 0 NOT IN ($2, $3, 7)))
			ORDER BY m.due_at
			` + postgresFirst + `$4::BIGINT)
			FOR UPDATE OF m SKIP LOCKED) page
		LIMIT $4`,
	// Each order key is looked at once, however many of its messages are due: what it holds is read to
	// find its first. On the comparison of order keys see SelectHeads.
	SelectFront: `
		WITH w AS MATERIALIZED (
			SELECT m.id, m.order_key, m.due_at - ` + postgresNow + ` AS wait
			FROM millrace_messages m
			WHERE m.consumer = $1 AND m.due_at <= (SELECT ` + postgresNow + `) + $2 AND m.status + 0 NOT IN (5, 6, 7) AND ($1` + postgresPlanned + `
			ORDER BY m.due_at
			LIMIT $3),
		h AS MATERIALIZED (
			SELECT k.order_key, (
				SELECT e.id FROM millrace_messages e
				WHERE e.consumer = $1 AND e.order_key >= k.order_key AND e.order_key <= k.order_key AND e.status + 0 NOT IN ($4, $5, 7)
				ORDER BY e.order_key, e.id
				LIMIT 1) AS id
			FROM (SELECT DISTINCT order_key FROM w WHERE order_key IS NOT NULL) k)
		SELECT w.id, w.wait, w.order_key IS NOT NULL AND (h.id IS NULL OR h.id < w.id) AS blocked
		FROM w
		LEFT JOIN h ON h.order_key = w.order_key
		ORDER BY w.wait`,
	// An order key between itself and itself: with an equation the primary key would be read
	// in its order, where few order keys make that look cheap.
	SelectHeads: `
		WITH RECURSIVE k (n, order_key) AS (
			SELECT 1, (
				SELECT s.order_key FROM millrace_messages s
				WHERE s.consumer = $3 AND s.order_key > $4
				ORDER BY s.order_key
				LIMIT 1)
			UNION ALL
			SELECT k.n + 1, (
				SELECT s.order_key FROM millrace_messages s
				WHERE s.consumer = $3 AND s.order_key > k.order_key
				ORDER BY s.order_key
				LIMIT 1)
			FROM k
			WHERE k.order_key IS NOT NULL AND k.n < $5)
		SELECT k.order_key, m.id, CASE WHEN m.status NOT IN (5, 6, 7) THEN m.due_at - ` + postgresNow + ` END AS wait
		FROM k
		LEFT JOIN LATERAL (
			SELECT e.id, e.status, e.due_at FROM millrace_messages e
			WHERE e.consumer = $3 AND e.order_key >= k.order_key AND e.order_key <= k.order_key AND e.status + 0 NOT IN ($1, $2, 7)
			ORDER BY e.order_key, e.id
			LIMIT 1) m ON TRUE
		WHERE k.order_key IS NOT NULL AND ($3` + postgresPlanned,
	SelectFree: `
		SELECT m.id, m.due_at - ` + postgresNow + ` AS wait
		FROM millrace_messages m
		WHERE m.consumer = $1 AND m.order_key IS NULL AND m.due_at <= (SELECT ` + postgresNow + `) + $2 AND m.status + 0 NOT IN (5, 6, 7)
		ORDER BY m.due_at
		LIMIT $3`,
	LockDue: `
		SELECT ` + messageColumns + `
		FROM millrace_messages m
		WHERE m.consumer = ? AND m.id IN (?) AND m.due_at <= (SELECT ` + postgresNow + `) AND m.status NOT IN (5, 6, 7)
		ORDER BY m.id
		LIMIT ?
		FOR UPDATE OF m SKIP LOCKED`,
	SelectSettled: `
		SELECT c.message_id, c.payload_hash, c.result
		FROM millrace_claims c
		WHERE c.consumer = ? AND c.message_id IN (?) AND c.result <> 0 AND NOT EXISTS (
			SELECT 1 FROM millrace_outcomes o WHERE o.consumer = c.consumer AND o.message_id = c.message_id)`,
	LeaseMessages: `
		UPDATE millrace_messages
		SET attempts = attempts + ?, lease_token = ?, due_at = ` + postgresNow + ` + ?
		WHERE consumer = ? AND message_id IN (?)`,
	LeaseOut: `
		UPDATE millrace_messages
		SET status = CASE WHEN status = 3 THEN status ELSE 2 END, lease_token = ?, due_at = ` + postgresNow + ` + ?
		WHERE consumer = ? AND message_id IN (?)`,
	Unlease: `
		UPDATE millrace_messages
		SET attempts = attempts - 1, lease_token = 0, due_at = ` + postgresNow + `
		WHERE consumer = ? AND message_id IN (?) AND lease_token = ?`,
	HandOut: `
		UPDATE millrace_messages
		SET status = 2, due_at = ` + postgresNow + ` + ?
		WHERE consumer = ? AND message_id IN (?) AND lease_token = ? AND status NOT IN (3, 5, 6, 7)`,
	ExtendLeases: `
		UPDATE millrace_messages
		SET due_at = ` + postgresNow + ` + ?
		WHERE id IN (
			SELECT id FROM millrace_messages
			WHERE consumer = ? AND message_id IN (?) AND lease_token = ? AND status NOT IN (5, 6, 7)
			FOR UPDATE SKIP LOCKED)`,
	PutBack: `
		UPDATE millrace_messages
		SET due_at = ` + postgresNow + `, lease_token = 0,
			status = CASE WHEN status <> 2 THEN status WHEN attempts = 0 THEN 1 ELSE 4 END
		WHERE consumer = ? AND message_id IN (?) AND lease_token = ?`,
	MoveLeased: `
		UPDATE millrace_messages
		SET status = $1, attempts = $2, last_error = $3, error_group = $4, reason = $5,
			due_at = ` + postgresNow + ` + $6, lease_token = 0
		WHERE consumer = $7 AND message_id = $8 AND lease_token = $9 AND status IN (1, 2, 3, 4)`,
	ParkLeased: `
		UPDATE millrace_messages
		SET status = 6, order_key = NULL, reason = $1, due_at = ` + postgresNow + ` + $2, lease_token = 0
		WHERE consumer = $3 AND message_id = $4 AND lease_token = $5 AND status IN (1, 2, 3, 4)`,
	NameLeased: `
		UPDATE millrace_messages
		SET message_id = $1, payload_hash = $2, original = $3, status = $4, attempts = 0, reason = $5,
			due_at = ` + postgresNow + ` + $6, lease_token = 0
		WHERE consumer = $7 AND message_id = $8 AND lease_token = $9 AND status IN (1, 2, 4)`,
	CloseLeased: `
		DELETE FROM millrace_messages
		WHERE consumer = $1 AND message_id = $2 AND lease_token = $3 AND status IN (1, 2, 3, 4)`,
	CompleteLeased: `
		INSERT INTO millrace_claims (consumer, message_id, payload_hash, token, result, processed_at)
		SELECT consumer, message_id, payload_hash, 0, 1, ` + postgresNow + `
		FROM millrace_messages
		WHERE consumer = ? AND message_id IN (?) AND lease_token = ? AND status NOT IN (3, 5, 6, 7)
		ON CONFLICT (consumer, message_id) DO UPDATE SET processed_at = EXCLUDED.processed_at, result = 1
			WHERE millrace_claims.result = 0`,
	DeleteLeased: `
		DELETE FROM millrace_messages
		WHERE consumer = ? AND message_id IN (?) AND lease_token = ? AND status NOT IN (3, 5, 6, 7)`,
	CompleteClaim: `
		INSERT INTO millrace_claims (consumer, message_id, payload_hash, token, result, processed_at)
		VALUES ($1, $2, $3, 0, 1, ` + postgresNow + `)
		ON CONFLICT (consumer, message_id) DO UPDATE SET processed_at = EXCLUDED.processed_at, result = 1
			WHERE millrace_claims.result = 0`,
	SettleLeased: `
		UPDATE millrace_messages
		SET status = 3, reason = $1
		WHERE consumer = $2 AND message_id = $3 AND lease_token = $4 AND status IN (1, 2, 3, 4)`,
	SelectOlderEpochs: `
		SELECT id
		FROM millrace_consumers
		WHERE namespace = $1 AND name = $2 AND epoch < $3`,
	SelectOpen: `
		SELECT EXISTS (SELECT 1 FROM millrace_messages WHERE consumer = $1 AND ($1` + postgresPlanned + `)`,
	SelectAdoptable: `
		SELECT * FROM (
			SELECT ` + messageColumns + `
			FROM millrace_messages m
			WHERE m.consumer = $1 AND (m.lease_token = 0 OR m.due_at <= (SELECT ` + postgresNow + `))
			ORDER BY m.due_at
			` + postgresFirst + `$2::BIGINT)
			FOR UPDATE OF m SKIP LOCKED) page
		LIMIT $2`,
	AdoptMessage: `
		UPDATE millrace_messages
		SET due_at = CASE status WHEN 7 THEN ` + postgresNow + ` ELSE due_at END, status = CASE status WHEN 7 THEN 1 ELSE status END,
			consumer = $1, message_id = $2
		WHERE consumer = $3 AND message_id = $4`,
	AdoptClaim: `
		UPDATE millrace_claims
		SET consumer = $1, message_id = $2
		WHERE consumer = $3 AND message_id = $4 AND result <> 3`,
	KeepClaim: `
		INSERT INTO millrace_claims (consumer, message_id, payload_hash, token, result, processed_at)
		SELECT $1::INT, $2::BYTEA, payload_hash, token, result, processed_at
		FROM millrace_claims
		WHERE consumer = $3 AND message_id = $4 AND result <> 0`,
	ParkAdopted: `
		UPDATE millrace_messages
		SET original = $1, order_key = NULL, status = $2, reason = $3, due_at = ` + postgresNow + ` + $4, lease_token = 0
		WHERE consumer = $5 AND message_id = $6`,
	AdoptOutcome: `
		UPDATE millrace_outcomes
		SET consumer = $1, message_id = $2
		WHERE consumer = $3 AND message_id = $4`,
	AdoptResult: `
		UPDATE millrace_results
		SET consumer = $1, message_id = $2
		WHERE consumer = $3 AND message_id = $4`,
	AdoptJournal: `
		UPDATE millrace_journal
		SET consumer = $1, message_id = $2
		WHERE consumer = $3 AND message_id = $4`,
	AdoptHistory: `
		UPDATE millrace_history
		SET consumer = $1, message_id = $2
		WHERE consumer = $3 AND message_id = $4`,
}
