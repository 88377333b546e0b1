package dialect

// History holds the statements for the failures and delays of a message.
type History struct {
	// InsertHistory records the present state of messages' open rows. It takes whether an attempt has failed, then
	// the consumer and the ids, twice. The caller must hold the messages.
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
