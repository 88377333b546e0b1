package dialect

var mysqlGate = Gate{
	AdvanceAggregate: `
		UPDATE millrace_versions
		SET version = ?, token = ?, message_id = ?, payload_hash = ?
		WHERE consumer = ? AND aggregate = ? AND version = ? AND held_to < ?`,
	// Assignments run from left to right: the token tells the rest whether the row advances.
	StepAggregate: `
		INSERT INTO millrace_versions (consumer, aggregate, version, first_version, token, message_id, payload_hash)
		VALUES (?, ?, ?, ?, ?, ?, ?)
		ON DUPLICATE KEY UPDATE
			token = IF(version >= ? AND version < ?, VALUES(token), token),
			message_id = IF(token = VALUES(token), VALUES(message_id), message_id),
			payload_hash = IF(token = VALUES(token), VALUES(payload_hash), payload_hash),
			version = IF(token = VALUES(token), ?, version)`,
	SelectAggregate: `
		SELECT version, first_version, held_to, token, message_id, payload_hash
		FROM millrace_versions
		WHERE consumer = ? AND aggregate = ?`,
	LockAggregate: `
		SELECT version, first_version, held_to, token, message_id, payload_hash
		FROM millrace_versions
		WHERE consumer = ? AND aggregate = ?
		FOR UPDATE SKIP LOCKED`,
	RetreatAggregate: `
		UPDATE millrace_versions
		SET version = ?, token = 0, message_id = ?
		WHERE consumer = ? AND aggregate = ? AND token = ?`,

	HoldMessage: `
		UPDATE millrace_messages
		SET status = ?, reason = ?, aggregate = ?, version = ?,
			order_key = CASE WHEN ? THEN NULL ELSE order_key END, due_at = ` + mysqlNow + ` + ?, lease_token = 0
		WHERE consumer = ? AND message_id = ? AND status = ? AND lease_token = ?`,
	ExpireHeld: `
		UPDATE millrace_messages
		SET status = 6, order_key = NULL, reason = ?, due_at = ` + mysqlNow + ` + ?
		WHERE consumer = ? AND message_id = ? AND status = 7`,
	RaiseHeld: `
		UPDATE millrace_versions
		SET held_to = GREATEST(held_to, ?)
		WHERE consumer = ? AND aggregate = ?`,
	CountHeld: `
		SELECT COUNT(*)
		FROM (
			SELECT 1 FROM millrace_messages FORCE INDEX (by_aggregate)
			WHERE consumer = ? AND aggregate = ? AND status = 7
			LIMIT ?) counted`,
	ReleaseHeld: `
		UPDATE millrace_messages
		SET status = 1, reason = ?, due_at = ` + mysqlNow + `
		WHERE consumer = ? AND aggregate = ? AND version <= ? AND status = 7`,
	SelectHeldAges: `
		SELECT id, due_at <= ` + mysqlNow + ` AS expired
		FROM millrace_messages FORCE INDEX (by_status)
		WHERE consumer = ? AND status = 7 AND id > ?
		ORDER BY id
		LIMIT ?`,
	SelectExpired: `
		SELECT m.id, m.message_id, m.aggregate, m.version, m.uuid, m.topic, m.event_type, m.metadata
		FROM millrace_messages m FORCE INDEX (PRIMARY)
		WHERE m.id IN (?) AND m.status = 7`,
	LockHeld: `
		SELECT id
		FROM millrace_messages FORCE INDEX (PRIMARY)
		WHERE id IN (?) AND status = 7 AND due_at <= ` + mysqlNow + `
		FOR UPDATE SKIP LOCKED`,
	SelectWaiting: `
		SELECT aggregate, version, received_at
		FROM millrace_messages FORCE INDEX (by_aggregate)
		WHERE consumer = ? AND aggregate > ? AND status = 7
		ORDER BY aggregate, version
		LIMIT ?`,
	SelectApplied: `
		SELECT aggregate, version
		FROM millrace_versions
		WHERE consumer = ? AND aggregate IN (?)`,

	SetVersion: `
		INSERT INTO millrace_versions (consumer, aggregate, version, first_version, token, message_id, payload_hash)
		VALUES (?, ?, ?, ?, ?, ?, 0)
		ON DUPLICATE KEY UPDATE
			token = IF(version <= VALUES(version), VALUES(token), token),
			message_id = IF(version <= VALUES(version), VALUES(message_id), message_id),
			payload_hash = IF(version <= VALUES(version), 0, payload_hash),
			version = GREATEST(version, VALUES(version))`,
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
		SET status = 1, reason = ?, due_at = ` + mysqlNow + `
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
