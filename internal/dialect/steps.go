package dialect

// Steps holds the statements for the handlers' calls outside of their transactions.
type Steps struct {
	InsertStep string
	SelectStep string
	TakeStep   string // takes the step over from an attempt that has ended
	EndStep    string
	TouchStep  string // keeps a completed step for longer

	MoveSteps string // to another id of their message; their own ids stay

	StorySteps     string
	SelectDoubtful string

	// SelectExpired returns a page of the steps that have expired since a time, and whether their message is open. It asks all
	// consumers: a message may wait in the queue of its handler's name while its steps are those of middleware.Deduplicate's
	// consumer.
	SelectExpired string
	DeleteSteps   string
}

var commonSteps = Steps{
	InsertStep: `
		INSERT INTO millrace_steps (id, namespace, consumer, message_id, name, epoch, state, token, until, started_at)
		VALUES (?, ?, ?, ?, ?, ?, 1, ?, {now} + ?, {now})
		ON CONFLICT (id) DO NOTHING`,
	SelectStep: `
		SELECT ` + stepColumns + `, s.until - {now} AS remaining
		FROM millrace_steps s
		WHERE s.id = ?`,
	TakeStep: `
		UPDATE millrace_steps
		SET token = ?, epoch = ?, state = 1, until = {now} + ?, attempts = attempts + 1, ended_at = 0
		WHERE id = ? AND token = ? AND (state = 3 OR state = 1 AND until <= {now})`,
	EndStep: `
		UPDATE millrace_steps
		SET state = ?, verified = ?, result = ?, problem = ?, until = {now} + ?, ended_at = {now}
		WHERE id = ? AND token = ? AND state = 1`,
	TouchStep: `
		UPDATE millrace_steps
		SET until = {now} + ?
		WHERE id = ? AND state = 2`,
	MoveSteps: `
		UPDATE millrace_steps
		SET message_id = ?
		WHERE message_id = ? AND namespace = ? AND consumer = ?`,

	StorySteps: `
		SELECT ` + stepColumns + `, s.until - {now} AS remaining
		FROM millrace_steps s
		WHERE s.namespace = ? AND s.message_id = ?
		ORDER BY s.started_at, s.name`,
	SelectDoubtful: `
		SELECT ` + stepColumns + `, s.until - {now} AS remaining
		FROM millrace_steps s
		WHERE s.state = 1 AND s.until <= {now} AND s.namespace = ?
		ORDER BY s.until
		LIMIT ?`,

	SelectExpired: `
		SELECT page.id, page.namespace, page.consumer, page.epoch, page.until, EXISTS (
				SELECT 1
				FROM millrace_consumers c
				JOIN millrace_messages m ON m.consumer = c.id AND m.message_id = page.message_id
				WHERE c.namespace = page.namespace) AS needed
		FROM (
			SELECT id, namespace, consumer, epoch, message_id, until
			FROM millrace_steps
			WHERE state = ? AND until >= ? AND until < ?
			ORDER BY until
			LIMIT ?) page
		ORDER BY page.until`,
	DeleteSteps: `
		DELETE FROM millrace_steps
		WHERE state <> 1 AND until < ? AND id IN (?)`,
}

const stepColumns = `s.id, s.namespace, s.consumer, s.epoch, s.message_id, s.name, s.state, s.verified, s.token,
			s.attempts, s.started_at, s.ended_at, s.result, s.problem`
