package dialect

var postgresSteps = Steps{
	InsertStep: `
		INSERT INTO millrace_steps (id, namespace, consumer, message_id, name, epoch, state, token, until, started_at)
		VALUES ($1, $2, $3, $4, $5, $6, 1, $7, ` + postgresNow + ` + $8, ` + postgresNow + `)
		ON CONFLICT (id) DO NOTHING`,
	SelectStep: `
		SELECT ` + stepColumns + `, s.until - ` + postgresNow + ` AS remaining
		FROM millrace_steps s
		WHERE s.id = $1`,
	TakeStep: `
		UPDATE millrace_steps
		SET token = $1, epoch = $2, state = 1, until = ` + postgresNow + ` + $3, attempts = attempts + 1, ended_at = 0
		WHERE id = $4 AND token = $5 AND (state = 3 OR state = 1 AND until <= ` + postgresNow + `)`,
	EndStep: `
		UPDATE millrace_steps
		SET state = $1, verified = $2, result = $3, problem = $4, until = ` + postgresNow + ` + $5, ended_at = ` + postgresNow + `
		WHERE id = $6 AND token = $7 AND state = 1`,
	TouchStep: `
		UPDATE millrace_steps
		SET until = ` + postgresNow + ` + $1
		WHERE id = $2 AND state = 2`,

	StorySteps: `
		SELECT ` + stepColumns + `, s.until - ` + postgresNow + ` AS remaining
		FROM millrace_steps s
		WHERE s.namespace = $1 AND s.message_id = $2
		ORDER BY s.started_at, s.name`,
	SelectDoubtful: `
		SELECT ` + stepColumns + `, s.until - ` + postgresNow + ` AS remaining
		FROM millrace_steps s
		WHERE s.state = 1 AND s.until <= ` + postgresNow + ` AND s.namespace = $1
		ORDER BY s.until
		LIMIT $2`,

	SelectExpired: `
		SELECT s.id
		FROM millrace_steps s
		WHERE s.state = $1 AND s.until < $2 AND NOT EXISTS (
			SELECT 1
			FROM millrace_consumers c
			JOIN millrace_messages m ON m.consumer = c.id AND m.message_id = s.message_id
			WHERE c.namespace = s.namespace AND c.name = s.consumer)
		ORDER BY s.until
		LIMIT $3`,
	DeleteSteps: `
		DELETE FROM millrace_steps
		WHERE state <> 1 AND until < ? AND id IN (?)`,
}
