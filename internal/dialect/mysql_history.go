package dialect

var mysqlHistory = History{
	InsertHistory: `
		INSERT INTO millrace_history (consumer, message_id, slot, number, at, received_at, attempts, status, failed, reason, error)
		SELECT m.consumer, m.message_id, k.number % 10, k.number, ` + mysqlNow + `,
			LEAST(m.received_at, COALESCE(k.received_at, m.received_at)), m.attempts, m.status, ?, m.reason, m.last_error
		FROM (
			SELECT COALESCE(MAX(number), 0) + 1 AS number, MIN(received_at) AS received_at
			FROM millrace_history
			WHERE consumer = ? AND message_id = ?) k
		CROSS JOIN millrace_messages m
		WHERE m.consumer = ? AND m.message_id = ?
		ON DUPLICATE KEY UPDATE
			number = VALUES(number), at = VALUES(at), received_at = VALUES(received_at), attempts = VALUES(attempts),
			status = VALUES(status), failed = VALUES(failed), reason = VALUES(reason), error = VALUES(error)`,
	StoryHistory: `
		SELECT c.name, c.epoch, h.number, h.at, h.received_at, h.attempts, h.status, h.failed, h.reason, h.error
		FROM millrace_consumers c
		JOIN millrace_history h ON h.consumer = c.id AND h.message_id = ?
		WHERE c.namespace = ?
		ORDER BY c.name, c.epoch, h.number`,
	DeleteHistory: `
		DELETE FROM millrace_history
		WHERE consumer = ? AND message_id IN (?)`,
}
