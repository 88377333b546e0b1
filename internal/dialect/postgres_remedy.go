package dialect

var postgresRemedy = Remedy{
	// With a status that equals something the planner would walk the primary key, and pass
	// over all other rows.
	ListMessages: `
		SELECT m.id
		FROM millrace_messages m
		WHERE m.consumer = $1 AND (m.status, m.id) > ($2, $3) AND m.status <= $2
			AND ($4::BYTEA IS NULL OR m.topic = $5) AND ($6::BIGINT IS NULL OR m.error_group = $7)
			AND m.received_at >= $8 AND m.received_at < $9
		ORDER BY m.status, m.id
		LIMIT $10`,
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
		WHERE m.consumer = $1 AND m.status = $2 AND m.error_group IS NOT NULL AND ($3::BYTEA IS NULL OR m.topic = $4)
			AND ($5::BIGINT IS NULL OR m.error_group = $6) AND m.received_at >= $7 AND m.received_at < $8
		GROUP BY m.error_group
		ORDER BY failures DESC
		LIMIT $9`,

	RetryMessage: `
		UPDATE millrace_messages
		SET status = 4, attempts = 0, reason = $1, due_at = ` + postgresNow + `
		WHERE consumer = $2 AND message_id = $3 AND status = $4 AND lease_token = 0`,
	ReplacePayload: `
		UPDATE millrace_messages
		SET payload = $1, payload_form = $2, payload_ref = $3, payload_hash = $4
		WHERE consumer = $5 AND message_id = $6 AND status = $7 AND payload_hash = $8 AND lease_token = 0`,
	ReplaceHash: `
		UPDATE millrace_claims
		SET payload_hash = $1, token = token + 1
		WHERE consumer = $2 AND message_id = $3 AND result = 0`,

	PauseConsumer: `
		UPDATE millrace_consumers
		SET paused = $1
		WHERE id = $2`,
	ServeConsumer: `
		UPDATE millrace_consumers
		SET served_until = GREATEST(served_until, ` + postgresNow + ` + $1)
		WHERE id = $2`,

	CountStatus: `
		SELECT COUNT(*)
		FROM (
			SELECT id FROM millrace_messages
			WHERE consumer = $1 AND (status, id) > ($2, 0) AND status <= $2
			ORDER BY status, id
			LIMIT $3) counted`,
	CountLapsed: `
		SELECT COUNT(*), COALESCE(SUM(CASE WHEN due_at <= $1 THEN 1 ELSE 0 END), 0),
			COALESCE(SUM(CASE WHEN due_at > $2 AND lease_token <> 0 THEN 1 ELSE 0 END), 0)
		FROM (
			SELECT due_at, lease_token FROM millrace_messages
			WHERE consumer = $3 AND (status, id) > ($4, 0) AND status <= $4
			ORDER BY status, id
			LIMIT $5) counted`,
	CountDue: `
		SELECT COUNT(*)
		FROM (
			SELECT id FROM millrace_messages
			WHERE consumer = $1 AND due_at <= $2 AND status IN (1, 4)
			ORDER BY due_at
			LIMIT $3) counted`,
	SelectOldest: `
		SELECT received_at
		FROM millrace_messages
		WHERE consumer = $1 AND (status, id) > ($2, 0) AND status <= $2
		ORDER BY status, id
		LIMIT 1`,
}
