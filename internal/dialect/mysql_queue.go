package dialect

var mysqlQueue = Queue{
	StoreMessage: `
		INSERT INTO millrace_messages (consumer, message_id, status, topic, partition_no, offset_no, order_key, event_type,
			event_version, uuid, metadata, payload, payload_hash, reason, original, payload_form, payload_ref, received_at, due_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, {now}, {now} + ?)
		ON DUPLICATE KEY UPDATE id = id`,
	// These search by place, so they never read messages that are held.
	SelectNextDue: `
		SELECT due_at - {now}, in_line
		FROM (
			(SELECT due_at, FALSE AS in_line
			FROM millrace_messages FORCE INDEX (by_ready)
			WHERE consumer = ? AND place = 0 AND due_at <= {now} + ?
			ORDER BY due_at
			LIMIT 1)
			UNION ALL
			(SELECT due_at, TRUE
			FROM millrace_messages FORCE INDEX (by_ready)
			WHERE consumer = ? AND place = 1 AND due_at <= {now} + ?
			ORDER BY due_at
			LIMIT 1)) page
		ORDER BY due_at
		LIMIT 1`,
	SelectDue: `
		SELECT ` + messageColumns + `
		FROM millrace_messages m FORCE INDEX (by_ready)
		WHERE m.consumer = ? AND m.place = 0 AND m.due_at <= {now}
		ORDER BY m.due_at
		LIMIT ?
		FOR UPDATE SKIP LOCKED`,
	// It reads each order key once, however many of its messages are due. It selects the first message of a key: with
	// NOT EXISTS, InnoDB reads the key to its end to find another one before the message. MariaDB evaluates w once for
	// each reference to it.
	SelectFront: `
		WITH w AS (
			SELECT m.id, m.consumer, m.order_key, m.due_at - {now} AS wait
			FROM millrace_messages m FORCE INDEX (by_ready)
			WHERE m.consumer = ? AND m.place = 1 AND m.due_at <= {now} + ?
			ORDER BY m.due_at
			LIMIT ?)
		SELECT w.id, w.wait, TRUE AS in_line, COALESCE(h.id < w.id OR h.stuck < w.id, FALSE) AS blocked
		FROM w
		LEFT JOIN (
			SELECT k.order_key, (
				SELECT e.id FROM millrace_messages e FORCE INDEX (by_line)
				WHERE e.consumer = k.consumer AND e.order_key = k.order_key AND e.place = 1
				ORDER BY e.id
				LIMIT 1) AS id,
				CASE WHEN ? THEN (
					SELECT s.id FROM millrace_messages s FORCE INDEX (by_line)
					WHERE s.consumer = k.consumer AND s.order_key = k.order_key AND s.place = 2
					ORDER BY s.id
					LIMIT 1) END AS stuck
			FROM (SELECT DISTINCT consumer, order_key FROM w) k) h ON h.order_key = w.order_key
		UNION ALL
		(SELECT m.id, m.due_at - {now}, FALSE, FALSE
		FROM millrace_messages m FORCE INDEX (by_ready)
		WHERE m.consumer = ? AND m.place = 0 AND m.due_at <= {now} + ?
		ORDER BY m.due_at
		LIMIT ?)
		ORDER BY wait`,
	// MySQL and MariaDB can skip from one key to the next only if GROUP BY has the leading columns of the index, and no
	// computed one. So the result includes keys whose messages are all held.
	SelectHeads: `
		SELECT h.order_key, m.id, CASE WHEN COALESCE(h.id < h.stuck, TRUE) THEN m.due_at - {now} END AS wait
		FROM (
			SELECT k.order_key, (
				SELECT e.id FROM millrace_messages e FORCE INDEX (by_line)
				WHERE e.consumer = k.consumer AND e.order_key = k.order_key AND e.place = 1
				ORDER BY e.id
				LIMIT 1) AS id,
				CASE WHEN k.stops THEN (
					SELECT s.id FROM millrace_messages s FORCE INDEX (by_line)
					WHERE s.consumer = k.consumer AND s.order_key = k.order_key AND s.place = 2
					ORDER BY s.id
					LIMIT 1) END AS stuck
			FROM (
				SELECT page.*, ? AS stops
				FROM (
					SELECT consumer, order_key
					FROM millrace_messages FORCE INDEX (by_line)
					WHERE consumer = ? AND order_key > ?
					GROUP BY consumer, order_key
					ORDER BY consumer, order_key
					LIMIT ?) page) k) h
		LEFT JOIN millrace_messages m ON m.id = h.id`,
	LockDue: `
		SELECT ` + messageColumns + `
		FROM millrace_messages m FORCE INDEX (PRIMARY)
		WHERE m.consumer = ? AND m.id IN (?) AND m.due_at <= {now} AND m.status IN (1, 2, 3, 4)
		ORDER BY m.id
		LIMIT ?
		FOR UPDATE SKIP LOCKED`,
	// FORCE INDEX makes MariaDB find several rows by their keys. Otherwise it goes by the status and locks
	// entries of that index before rows, while a handler's transaction that closes its own row locks
	// in the opposite order: a deadlock.
	LeaseMessages: `
		UPDATE millrace_messages FORCE INDEX (by_key)
		SET attempts = attempts + ?, lease_token = ?, due_at = {now} + ?
		WHERE consumer = ? AND message_id IN (?)`,
	LeaseOut: `
		UPDATE millrace_messages FORCE INDEX (by_key)
		SET status = CASE WHEN status = 3 THEN status ELSE 2 END, lease_token = ?, due_at = {now} + ?
		WHERE consumer = ? AND message_id IN (?)`,
	Unlease: `
		UPDATE millrace_messages FORCE INDEX (by_key)
		SET attempts = attempts - 1, lease_token = 0, due_at = {now} + ?
		WHERE consumer = ? AND message_id IN (?) AND lease_token IN (?)`,
	HandOut: `
		UPDATE millrace_messages FORCE INDEX (by_key)
		SET status = 2, due_at = {now} + ?
		WHERE consumer = ? AND message_id IN (?) AND lease_token IN (?) AND status IN (1, 2, 4)`,
	// The LIMIT keeps MySQL from merging the inner statement into the outer one, and STRAIGHT_JOIN has the outer one touch
	// only rows that the inner one has locked.
	ExtendLeases: `
		UPDATE (
			SELECT id, {now} + ? AS until
			FROM millrace_messages FORCE INDEX (by_key)
			WHERE consumer = ? AND message_id IN (?) AND lease_token IN (?) AND status IN (1, 2, 3, 4)
			LIMIT 1000000
			FOR UPDATE SKIP LOCKED) free
		STRAIGHT_JOIN millrace_messages m FORCE INDEX (PRIMARY) ON m.id = free.id
		SET m.due_at = free.until`,
	PutBack: `
		UPDATE millrace_messages FORCE INDEX (by_key)
		SET due_at = {now}, lease_token = 0,
			status = CASE WHEN status <> 2 THEN status WHEN attempts = 0 THEN 1 ELSE 4 END
		WHERE consumer = ? AND message_id IN (?) AND lease_token IN (?)`,
	CompleteLeased: `
		INSERT INTO millrace_claims (consumer, message_id, payload_hash, token, result, processed_at)
		SELECT consumer, message_id, payload_hash, 0, 1, {now}
		FROM millrace_messages
		WHERE consumer = ? AND message_id IN (?) AND lease_token IN (?) AND status IN (1, 2, 4)
		ON DUPLICATE KEY UPDATE
			processed_at = IF(millrace_claims.result = 0, VALUES(processed_at), millrace_claims.processed_at),
			result = IF(millrace_claims.result = 0, 1, millrace_claims.result)`,
	DeleteLeased: `
		DELETE m FROM millrace_messages m FORCE INDEX (by_key)
		WHERE consumer = ? AND message_id IN (?) AND lease_token IN (?) AND status IN (1, 2, 4)`,
	CompleteClaim: `
		INSERT INTO millrace_claims (consumer, message_id, payload_hash, token, result, processed_at)
		VALUES (?, ?, ?, 0, 1, {now})
		ON DUPLICATE KEY UPDATE
			processed_at = IF(result = 0, VALUES(processed_at), processed_at), result = IF(result = 0, 1, result)`,
	SelectFirst: `
		SELECT MIN(received_at)
		FROM (
			SELECT received_at
			FROM millrace_messages FORCE INDEX (by_status)
			WHERE consumer = ? AND status = ?
			ORDER BY id
			LIMIT ?) oldest`,
	SelectAdoptable: `
		SELECT ` + messageColumns + `
		FROM millrace_messages m FORCE INDEX (by_status)
		WHERE m.consumer = ? AND (m.lease_token = 0 OR m.due_at <= {now})
		ORDER BY m.status, m.id
		LIMIT ?
		FOR UPDATE SKIP LOCKED`,
}

var mysqlRemedy = Remedy{
	RetryMessages: `
		UPDATE millrace_messages FORCE INDEX (by_key)
		SET status = 4, attempts = 0, reason = ?, reason_code = 0, allowed = allowed | ?, due_at = {now}
		WHERE consumer = ? AND message_id IN (?) AND status + 0 = ? AND lease_token = 0`, // as LeaseMessages
	SearchStatus: `
		SELECT CASE WHEN matches THEN id ELSE 0 END AS found, MAX(id) AS last_id, COUNT(*) AS looked
		FROM (
			SELECT m.id, (? IS NULL OR m.topic = ?) AND m.received_at >= ? AND m.received_at < ? AS matches
			FROM millrace_messages m FORCE INDEX (by_status)
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
			FROM millrace_messages m FORCE INDEX (by_group)
			WHERE m.consumer = ? AND m.error_group = ? AND m.id > ?
			ORDER BY m.id
			LIMIT ?) page
		GROUP BY found
		ORDER BY found`,
	SearchStatusBack: `
		SELECT CASE WHEN matches THEN id ELSE 0 END AS found, MIN(id) AS last_id, COUNT(*) AS looked
		FROM (
			SELECT m.id, (? IS NULL OR m.topic = ?) AND m.received_at >= ? AND m.received_at < ? AS matches
			FROM millrace_messages m FORCE INDEX (by_status)
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
			FROM millrace_messages m FORCE INDEX (by_group)
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
			FROM millrace_messages m FORCE INDEX (by_status)
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
			FROM millrace_messages m FORCE INDEX (by_group)
			WHERE m.consumer = ? AND m.error_group = ?
			ORDER BY m.id DESC
			LIMIT ?) page
		GROUP BY group_id`,

	CountStatus: `
		SELECT COUNT(*)
		FROM (
			SELECT id FROM millrace_messages FORCE INDEX (by_status)
			WHERE consumer = ? AND status = ?
			ORDER BY id
			LIMIT ?) counted`,
	CountLapsed: `
		SELECT COUNT(*), COALESCE(SUM(CASE WHEN due_at <= ? OR status = 2 AND lease_token = 0 THEN 1 ELSE 0 END), 0),
			COALESCE(SUM(CASE WHEN due_at > ? AND lease_token <> 0 THEN 1 ELSE 0 END), 0)
		FROM (
			SELECT status, due_at, lease_token FROM millrace_messages FORCE INDEX (by_status)
			WHERE consumer = ? AND status = ?
			ORDER BY id
			LIMIT ?) counted`,
	CountDue: `
		SELECT COUNT(*)
		FROM (
			(SELECT id FROM millrace_messages FORCE INDEX (by_ready)
			WHERE consumer = ? AND place = 0 AND due_at <= ? AND status IN (1, 4)
			ORDER BY due_at
			LIMIT ?)
			UNION ALL
			(SELECT id FROM millrace_messages FORCE INDEX (by_ready)
			WHERE consumer = ? AND place = 1 AND due_at <= ? AND status IN (1, 4)
			ORDER BY due_at
			LIMIT ?)) counted`,
	SelectOldest: `
		SELECT COALESCE(MIN(CASE
			WHEN due_at > ? AND lease_token = 0 THEN CASE WHEN status <> 1 THEN received_at END
			WHEN status <> 4 OR attempts > 0 THEN received_at
			WHEN lease_token = 0 THEN due_at END), ?)
		FROM (
			SELECT status, attempts, due_at, lease_token, received_at
			FROM millrace_messages FORCE INDEX (by_status)
			WHERE consumer = ? AND status = ?
			ORDER BY id
			LIMIT ?) oldest`,

	ListAudit: `
		SELECT id
		FROM millrace_audit FORCE INDEX (by_consumer)
		WHERE consumer = ? AND id < ?
		ORDER BY id DESC
		LIMIT ?`,
	OldestAudit: `
		SELECT id, at, messages
		FROM millrace_audit FORCE INDEX (by_consumer)
		WHERE consumer = ?
		ORDER BY id
		LIMIT ?`,

	ImportClaims: `
		INSERT INTO millrace_claims (consumer, message_id, token, processed_at, payload_hash, result)
		VALUES (?, ?, ?, ?, 0, 4)
		ON DUPLICATE KEY UPDATE token = millrace_claims.token`,
}
