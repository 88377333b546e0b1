package dialect

var sqliteGate = Gate{
	Returning: true,

	AdvanceAggregate: `
		UPDATE millrace_versions
		SET version = ?, token = ?, message_id = ?, payload_hash = ?
		WHERE consumer = ? AND aggregate = ? AND version = ? AND held_to < ?`,
	StepAggregate: `
		INSERT INTO millrace_versions AS a (consumer, aggregate, version, first_version, token, message_id, payload_hash)
		VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
		ON CONFLICT (consumer, aggregate) DO UPDATE SET
			token = CASE WHEN a.version >= ?8 AND a.version < ?9 THEN EXCLUDED.token ELSE a.token END,
			message_id = CASE WHEN a.version >= ?8 AND a.version < ?9 THEN EXCLUDED.message_id ELSE a.message_id END,
			payload_hash = CASE WHEN a.version >= ?8 AND a.version < ?9 THEN EXCLUDED.payload_hash ELSE a.payload_hash END,
			version = CASE WHEN a.version >= ?8 AND a.version < ?9 THEN ?10 ELSE a.version END
		RETURNING version, first_version, held_to, token, message_id, payload_hash`,
	SelectAggregate: `
		SELECT version, first_version, held_to, token, message_id, payload_hash
		FROM millrace_versions
		WHERE consumer = ? AND aggregate = ?`,
	LockAggregate: `
		UPDATE millrace_versions
		SET held_to = held_to
		WHERE consumer = ? AND aggregate = ?
		RETURNING version, first_version, held_to, token, message_id, payload_hash`,
	RetreatAggregate: `
		UPDATE millrace_versions
		SET version = ?, token = 0, message_id = ?
		WHERE consumer = ? AND aggregate = ? AND token = ?`,

	HoldMessage: `
		UPDATE millrace_messages
		SET status = ?, reason = ?, aggregate = ?, version = ?,
			order_key = CASE WHEN ? THEN NULL ELSE order_key END, due_at = ` + sqliteNow + ` + ?, lease_token = 0
		WHERE consumer = ? AND message_id = ? AND status = ? AND lease_token = ?`,
	ExpireHeld: `
		UPDATE millrace_messages
		SET status = 6, order_key = NULL, reason = ?, due_at = ` + sqliteNow + ` + ?
		WHERE consumer = ? AND message_id = ? AND status = 7`,
	RaiseHeld: `
		UPDATE millrace_versions
		SET held_to = MAX(held_to, ?)
		WHERE consumer = ? AND aggregate = ?`,
	CountHeld: `
		SELECT COUNT(*)
		FROM (
			SELECT 1 FROM millrace_messages INDEXED BY ix_millrace_messages_held
			WHERE consumer = ? AND aggregate = ? AND status = 7
			LIMIT ?) counted`,
	ReleaseHeld: `
		UPDATE millrace_messages
		SET status = 1, reason = ?, due_at = ` + sqliteNow + `
		WHERE consumer = ? AND aggregate = ? AND version <= ? AND status = 7`,
	SelectHeldAges: `
		SELECT id, id IN (
				SELECT id FROM millrace_messages INDEXED BY ix_millrace_messages_due
				WHERE consumer = ?1 AND due_at <= ` + sqliteNow + `) AS expired
		FROM millrace_messages INDEXED BY ix_millrace_messages_status
		WHERE consumer = ?1 AND status = 7 AND id > ?2
		ORDER BY id
		LIMIT ?3`,
	SelectExpired: `
		SELECT m.id, m.message_id, m.aggregate, m.version, m.uuid, m.topic, m.event_type, m.metadata
		FROM millrace_messages m
		WHERE m.id IN (?) AND +m.status = 7`,
	LockHeld: `
		SELECT id
		FROM millrace_messages
		WHERE id IN (?) AND +status = 7 AND due_at <= ` + sqliteNow,
	SelectWaiting: `
		SELECT aggregate, version, received_at
		FROM millrace_messages INDEXED BY ix_millrace_messages_held
		WHERE consumer = ? AND aggregate > ? AND status = 7
		ORDER BY aggregate, version
		LIMIT ?`,
	SelectApplied: `
		SELECT aggregate, version
		FROM millrace_versions
		WHERE consumer = ? AND aggregate IN (?)`,

	SetVersion: `
		INSERT INTO millrace_versions AS a (consumer, aggregate, version, first_version, token, message_id, payload_hash)
		VALUES (?, ?, ?, ?, ?, ?, 0)
		ON CONFLICT (consumer, aggregate) DO UPDATE SET
			version = EXCLUDED.version, token = EXCLUDED.token, message_id = EXCLUDED.message_id, payload_hash = 0
			WHERE a.version <= EXCLUDED.version`,
	SelectVersions: `
		SELECT aggregate
		FROM millrace_versions
		WHERE consumer = ? AND aggregate > ?
		ORDER BY aggregate
		LIMIT ?`,
	DeleteVersions: `
		DELETE FROM millrace_versions
		WHERE consumer = ? AND aggregate IN (?)`,
	ReleaseAll: `
		UPDATE millrace_messages
		SET status = 1, reason = ?, due_at = ` + sqliteNow + `
		WHERE id IN (?) AND status = 7`,
	SelectForgetable: `
		SELECT c.message_id
		FROM millrace_claims c
		WHERE c.consumer = ? AND c.message_id > ? AND c.result <> 0 AND NOT EXISTS (
			SELECT 1 FROM millrace_outcomes o WHERE o.consumer = c.consumer AND o.message_id = c.message_id)
		ORDER BY c.message_id
		LIMIT ?`,
	LowerPurgeLine: `
		UPDATE millrace_consumers
		SET purge_line = 0
		WHERE id = ?`,
}
