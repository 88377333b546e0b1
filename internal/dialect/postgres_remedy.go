package dialect

var postgresRemedy = Remedy{
	// With a status that equals something the planner would walk the primary key, and pass
	// over all other rows.
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

	CountRetries: `
		SELECT COUNT(*)
		FROM millrace_audit a
		JOIN millrace_messages m ON m.consumer = a.consumer AND m.message_id = a.message_id
		WHERE a.action = $1 AND a.consumer = $2 AND a.message_id = $3 AND a.at >= m.received_at`,
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
			SELECT * FROM (
				SELECT id FROM millrace_messages
				WHERE consumer = $1 AND (status, id) > ($2, 0) AND status <= $2
				ORDER BY status, id
				` + postgresFirst + `$3::BIGINT)) page
			LIMIT $3) counted`,
	CountLapsed: `
		SELECT COUNT(*), COALESCE(SUM(CASE WHEN due_at <= $1 THEN 1 ELSE 0 END), 0),
			COALESCE(SUM(CASE WHEN due_at > $2 AND lease_token <> 0 THEN 1 ELSE 0 END), 0)
		FROM (
			SELECT * FROM (
				SELECT due_at, lease_token FROM millrace_messages
				WHERE consumer = $3 AND (status, id) > ($4, 0) AND status <= $4
				ORDER BY status, id
				` + postgresFirst + `$5::BIGINT)) page
			LIMIT $5) counted`,
	CountDue: `
		SELECT COUNT(*)
		FROM (
			SELECT * FROM (
				SELECT id FROM millrace_messages
				WHERE consumer = $1 AND due_at <= $2 AND status + 0 IN (1, 4)
				ORDER BY due_at
				` + postgresFirst + `$3::BIGINT)) page
			LIMIT $3) counted`,
	SelectOldest: `
		SELECT received_at
		FROM millrace_messages
		WHERE consumer = $1 AND (status, id) > ($2, 0) AND status <= $2
		ORDER BY status, id
		LIMIT 1`,
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
	SelectAudit: `
		SELECT id, at, actor, action, reason, consumer, message_id, detail
		FROM millrace_audit
		WHERE id IN (?)
		ORDER BY id DESC`,

	ImportClaims: `
		INSERT INTO millrace_claims (consumer, message_id, token, processed_at, payload_hash, result)
		VALUES ($1, $2, $3, $4, 0, 4)
		ON CONFLICT (consumer, message_id) DO NOTHING`,
	SelectImported: `
		SELECT message_id, token, result
		FROM millrace_claims
		WHERE consumer = ? AND message_id IN (?)`,
}
