package dialect

var mysqlRemedy = Remedy{
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
	SelectListed: `
		SELECT c.name, c.epoch, c.key_source, ` + messageColumns + `
		FROM millrace_messages m
		JOIN millrace_consumers c ON c.id = m.consumer
		WHERE m.id IN (?)
		ORDER BY m.id`,
	ListOutlines: `
		SELECT c.name, c.epoch, c.key_source, ` + outlineColumns + `
		FROM millrace_messages m
		JOIN millrace_consumers c ON c.id = m.consumer
		WHERE m.id IN (?)
		ORDER BY m.id`,
	SelectErrors: `
		SELECT m.error_group, m.last_error
		FROM millrace_messages m
		WHERE m.id IN (?)`,
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

	CountRetries: `
		SELECT COUNT(*)
		FROM millrace_audit a
		JOIN millrace_messages m ON m.consumer = a.consumer AND m.message_id = a.message_id
		WHERE a.action = ? AND a.consumer = ? AND a.message_id = ? AND a.at >= m.received_at`,
	RetryMessage: `
		UPDATE millrace_messages
		SET status = 4, attempts = 0, reason = ?, due_at = ` + mysqlNow + `
		WHERE consumer = ? AND message_id = ? AND status = ? AND lease_token = 0`,
	ReplacePayload: `
		UPDATE millrace_messages
		SET payload = ?, payload_form = ?, payload_ref = ?, payload_hash = ?
		WHERE consumer = ? AND message_id = ? AND status = ? AND payload_hash = ? AND lease_token = 0`,
	ReplaceHash: `
		UPDATE millrace_claims
		SET payload_hash = ?, token = token + 1
		WHERE consumer = ? AND message_id = ? AND result = 0`,

	PauseConsumer: `
		UPDATE millrace_consumers
		SET paused = ?
		WHERE id = ?`,
	ServeConsumer: `
		UPDATE millrace_consumers
		SET served_until = GREATEST(served_until, ` + mysqlNow + ` + ?)
		WHERE id = ?`,

	CountStatus: `
		SELECT COUNT(*)
		FROM (
			SELECT id FROM millrace_messages FORCE INDEX (by_status)
			WHERE consumer = ? AND status = ?
			ORDER BY id
			LIMIT ?) counted`,
	CountLapsed: `
		SELECT COUNT(*), COALESCE(SUM(CASE WHEN due_at <= ? THEN 1 ELSE 0 END), 0),
			COALESCE(SUM(CASE WHEN due_at > ? AND lease_token <> 0 THEN 1 ELSE 0 END), 0)
		FROM (
			SELECT due_at, lease_token FROM millrace_messages FORCE INDEX (by_status)
			WHERE consumer = ? AND status = ?
			ORDER BY id
			LIMIT ?) counted`,
	CountDue: `
		SELECT COUNT(*)
		FROM (
			SELECT id FROM millrace_messages FORCE INDEX (by_due)
			WHERE consumer = ? AND due_at <= ? AND status IN (1, 4)
			ORDER BY due_at
			LIMIT ?) counted`,
	SelectOldest: `
		SELECT received_at
		FROM millrace_messages FORCE INDEX (by_status)
		WHERE consumer = ? AND status = ?
		ORDER BY id
		LIMIT 1`,
	CountOutcomes: `
		SELECT COUNT(*), COALESCE(MIN(created_at), ?)
		FROM (
			SELECT created_at FROM millrace_outcomes
			WHERE consumer = ?
			ORDER BY consumer, message_id
			LIMIT ?) counted`,

	ListAudit: `
		SELECT id
		FROM millrace_audit FORCE INDEX (by_consumer)
		WHERE consumer = ? AND id < ?
		ORDER BY id DESC
		LIMIT ?`,
	SelectAudit: `
		SELECT id, at, actor, action, reason, consumer, message_id, detail
		FROM millrace_audit
		WHERE id IN (?)
		ORDER BY id DESC`,

	ImportClaims: `
		INSERT INTO millrace_claims (consumer, message_id, token, processed_at, payload_hash, result)
		VALUES (?, ?, ?, ?, 0, 4)
		ON DUPLICATE KEY UPDATE token = millrace_claims.token`,
	SelectImported: `
		SELECT message_id, token, result
		FROM millrace_claims
		WHERE consumer = ? AND message_id IN (?)`,
}
