package dialect

var mysqlRemedy = Remedy{
	ListMessages: `
		SELECT m.id
		FROM millrace_messages m FORCE INDEX (by_status)
		WHERE m.consumer = ? AND m.status = ? AND m.id > ? AND (? IS NULL OR m.topic = ?)
			AND (? IS NULL OR m.error_group = ?) AND m.received_at >= ? AND m.received_at < ?
		ORDER BY m.id
		LIMIT ?`,
	SelectListed: `
		SELECT c.name, c.epoch, c.key_source, ` + messageColumns + `
		FROM millrace_messages m
		JOIN millrace_consumers c ON c.id = m.consumer
		WHERE m.id IN (?)
		ORDER BY m.id`,
	SelectErrors: `
		SELECT m.error_group, m.last_error
		FROM millrace_messages m
		WHERE m.id IN (?)`,
	GroupFailures: `
		SELECT m.error_group, COUNT(*) AS failures, MIN(m.received_at) AS first_at, MAX(m.received_at) AS last_at,
			MAX(m.id) AS example
		FROM millrace_messages m
		WHERE m.consumer = ? AND m.status = ? AND m.error_group IS NOT NULL AND (? IS NULL OR m.topic = ?)
			AND (? IS NULL OR m.error_group = ?) AND m.received_at >= ? AND m.received_at < ?
		GROUP BY m.error_group
		ORDER BY failures DESC
		LIMIT ?`,

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
}
