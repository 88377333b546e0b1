package dialect

var mysqlSteps = Steps{
	InsertStep: `
		INSERT INTO millrace_steps (id, namespace, consumer, message_id, name, epoch, state, token, until, started_at)
		VALUES (?, ?, ?, ?, ?, ?, 1, ?, ` + mysqlNow + ` + ?, ` + mysqlNow + `)
		ON DUPLICATE KEY UPDATE token = token`,
	SelectStep: `
		SELECT ` + stepColumns + `, s.until - ` + mysqlNow + ` AS remaining
		FROM millrace_steps s
		WHERE s.id = ?`,
	TakeStep: `
		UPDATE millrace_steps
		SET token = ?, epoch = ?, state = 1, until = ` + mysqlNow + ` + ?, attempts = attempts + 1, ended_at = 0
		WHERE id = ? AND token = ? AND (state = 3 OR state = 1 AND until <= ` + mysqlNow + `)`,
	EndStep: `
		UPDATE millrace_steps
		SET state = ?, verified = ?, result = ?, problem = ?, until = ` + mysqlNow + ` + ?, ended_at = ` + mysqlNow + `
		WHERE id = ? AND token = ? AND state = 1`,
	TouchStep: `
		UPDATE millrace_steps
		SET until = ` + mysqlNow + ` + ?
		WHERE id = ? AND state = 2`,

	StorySteps: `
		SELECT ` + stepColumns + `, s.until - ` + mysqlNow + ` AS remaining
		FROM millrace_steps s
		WHERE s.namespace = ? AND s.message_id = ?
		ORDER BY s.started_at, s.name`,
	SelectDoubtful: `
		SELECT ` + stepColumns + `, s.until - ` + mysqlNow + ` AS remaining
		FROM millrace_steps s
		WHERE s.state = 1 AND s.until <= ` + mysqlNow + ` AND s.namespace = ?
		ORDER BY s.until
		LIMIT ?`,

	SelectExpired: `
		SELECT s.id
		FROM millrace_steps s
		WHERE s.state = ? AND s.until < ? AND NOT EXISTS (
			SELECT 1
			FROM millrace_consumers c
			JOIN millrace_messages m ON m.consumer = c.id AND m.message_id = s.message_id
			WHERE c.namespace = s.namespace AND c.name = s.consumer)
		ORDER BY s.until
		LIMIT ?`,
	DeleteSteps: `
		DELETE FROM millrace_steps
		WHERE state <> 1 AND until < ? AND id IN (?)`,
}
