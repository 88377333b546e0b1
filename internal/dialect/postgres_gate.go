package dialect

var postgresGate = Gate{
	Returning: true,

	AdvanceAggregate: `
		UPDATE millrace_versions
		SET version = $1, token = $2, message_id = $3, payload_hash = $4
		WHERE consumer = $5 AND aggregate = $6 AND version = $7 AND held_to < $8`,
	StepAggregate: `
		INSERT INTO millrace_versions AS a (consumer, aggregate, version, first_version, token, message_id, payload_hash)
		VALUES ($1, $2, $3, $4, $5, $6, $7)
		ON CONFLICT (consumer, aggregate) DO UPDATE SET
			token = CASE WHEN a.version >= $8 AND a.version < $9 THEN EXCLUDED.token ELSE a.token END,
			message_id = CASE WHEN a.version >= $8 AND a.version < $9 THEN EXCLUDED.message_id ELSE a.message_id END,
			payload_hash = CASE WHEN a.version >= $8 AND a.version < $9 THEN EXCLUDED.payload_hash ELSE a.payload_hash END,
			version = CASE WHEN a.version >= $8 AND a.version < $9 THEN $10 ELSE a.version END
		RETURNING version, first_version, held_to, token, message_id, payload_hash`,
	SelectAggregate: `
		SELECT version, first_version, held_to, token, message_id, payload_hash
		FROM millrace_versions
		WHERE consumer = $1 AND aggregate = $2`,
	LockAggregate: `
		SELECT version, first_version, held_to, token, message_id, payload_hash
		FROM millrace_versions
		WHERE consumer = $1 AND aggregate = $2
		FOR UPDATE SKIP LOCKED`,
	RetreatAggregate: `
		UPDATE millrace_versions
		SET version = $1, token = 0, message_id = $2
		WHERE consumer = $3 AND aggregate = $4 AND token = $5`,

	HoldMessage: `
		UPDATE millrace_messages
		SET status = $1, reason = $2, aggregate = $3, version = $4,
			order_key = CASE WHEN $5 THEN NULL ELSE order_key END, due_at = ` + postgresNow + ` + $6, lease_token = 0
		WHERE consumer = $7 AND message_id = $8 AND status = $9 AND lease_token = $10`,
	ExpireHeld: `
		UPDATE millrace_messages
		SET status = 6, order_key = NULL, reason = $1, due_at = ` + postgresNow + ` + $2
		WHERE consumer = $3 AND message_id = $4 AND status = 7`,
	RaiseHeld: `
		UPDATE millrace_versions
		SET held_to = GREATEST(held_to, $1)
		WHERE consumer = $2 AND aggregate = $3`,
	CountHeld: `
		SELECT COUNT(*)
		FROM (
			SELECT 1 FROM millrace_messages
			WHERE consumer = $1 AND aggregate = $2 AND status = 7
			LIMIT $3) counted`,
	ReleaseHeld: `
		UPDATE millrace_messages
		SET status = 1, reason = $1, due_at = ` + postgresNow + `
		WHERE consumer = $2 AND aggregate = $3 AND version <= $4 AND status = 7`,
	SelectHeldAges: `
		SELECT * FROM (
			SELECT id, due_at <= (SELECT ` + postgresNow + `) AS expired
			FROM millrace_messages
			WHERE consumer = $1 AND (status, id) > (7, $2) AND status <= 7
			ORDER BY status, id
			` + postgresFirst + `$3::BIGINT)) page
		LIMIT $3`,
	SelectExpired: `
		SELECT m.id, m.message_id, m.aggregate, m.version, m.uuid, m.topic, m.event_type, m.metadata
		FROM millrace_messages m
		WHERE m.id IN (?) AND m.status = 7`,
	LockHeld: `
		SELECT id
		FROM millrace_messages
		WHERE id IN (?) AND status = 7 AND due_at <= (SELECT ` + postgresNow + `)
		FOR UPDATE SKIP LOCKED`,
	SelectWaiting: `
		SELECT aggregate, version, received_at
		FROM millrace_messages
		WHERE (consumer, aggregate) > ($1, $2) AND consumer <= $1 AND status = 7
		ORDER BY consumer, aggregate, version
		LIMIT $3`,
	SelectApplied: `
		SELECT aggregate, version
		FROM millrace_versions
		WHERE consumer = ? AND aggregate IN (?)`,

	SetVersion: `
		INSERT INTO millrace_versions AS a (consumer, aggregate, version, first_version, token, message_id, payload_hash)
		VALUES ($1, $2, $3, $4, $5, $6, 0)
		ON CONFLICT (consumer, aggregate) DO UPDATE SET
			version = EXCLUDED.version, token = EXCLUDED.token, message_id = EXCLUDED.message_id, payload_hash = 0
			WHERE a.version <= EXCLUDED.version`,
	SelectVersions: `
		SELECT * FROM (
			SELECT aggregate
			FROM millrace_versions
			WHERE consumer = $1 AND aggregate > $2
			ORDER BY aggregate
			` + postgresFirst + `$3::BIGINT)) page
		LIMIT $3`,
	DeleteVersions: `
		DELETE FROM millrace_versions
		WHERE consumer = ? AND aggregate IN (?)`,
	ReleaseAll: `
		UPDATE millrace_messages
		SET status = 1, reason = ?, due_at = ` + postgresNow + `
		WHERE id IN (?) AND status = 7`,
	SelectForgetable: `
		SELECT * FROM (
			SELECT c.message_id
			FROM millrace_claims c
			WHERE c.consumer = $1 AND c.message_id > $2 AND c.result <> 0 AND NOT EXISTS (
				SELECT 1 FROM millrace_outcomes o WHERE o.consumer = c.consumer AND o.message_id = c.message_id)
			ORDER BY c.message_id
			` + postgresFirst + `$3::BIGINT)) page
		LIMIT $3`,
	LowerPurgeLine: `
		UPDATE millrace_consumers
		SET purge_line = 0
		WHERE id = $1`,
}
