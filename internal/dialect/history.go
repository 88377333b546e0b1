package dialect

// History holds the statements for the failures and delays of a message.
type History struct {
	// InsertHistory records the present state of messages' open rows. It takes whether an attempt has failed, the
	// process, the time that its handler ran, and its trace; then the consumer and the ids, twice. The caller must hold the messages.
	InsertHistory string
	StoryHistory  string
	DeleteHistory string
}

var commonHistory = History{
	StoryHistory: `
		SELECT c.name, c.epoch, h.number, h.at, h.received_at, h.attempts, h.status, h.failed, h.reason, h.error,
			CASE WHEN h.run_of = h.number THEN h.process END AS process,
			COALESCE(CASE WHEN h.run_of = h.number THEN h.took_us END, 0) AS took_us,
			CASE WHEN h.run_of = h.number THEN h.trace END AS trace
		FROM millrace_consumers c
		JOIN millrace_history h ON h.consumer = c.id AND h.message_id = ?
		WHERE c.namespace = ?
		ORDER BY c.name, c.epoch, h.number`,
	DeleteHistory: `
		DELETE FROM millrace_history
		WHERE consumer = ? AND message_id IN (?)`,
}
