package dialect

// History holds the statements for what went wrong with a message, or held it up.
type History struct {
	// InsertHistory keeps how the open row of a message is now. It takes whether an attempt has failed, then twice
	// the consumer and the id. Only one who holds the message may call it.
	InsertHistory string
	StoryHistory  string
	DeleteHistory string
}

var commonHistory = History{
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
