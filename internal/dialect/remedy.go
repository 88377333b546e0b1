package dialect

// Remedy holds the statements by which operators list open messages and decide about them.
type Remedy struct {
	// The searches and the groups read a number of rows and return those that match; they count
	// the rows that do not match under 0. Arguments:
	//   - a topic, twice, where NULL means any;
	//   - the time of arrival, from and below;
	//   - the searches by status and GroupFailures: a consumer and a status;
	//     the searches by group and GroupFailure: the first and the last status, a consumer and a group of errors;
	//   - the searches: the id behind which to begin, or, if they go back, the id before which;
	//   - how many rows to read;
	//   - GroupFailures: how many groups to return.
	SearchStatus     string
	SearchGroup      string
	SearchStatusBack string // the newest first
	SearchGroupBack  string
	SelectListed     string
	ListOutlines     string // SelectListed without payloads
	SelectErrors     string
	GroupFailures    string
	GroupFailure     string

	RetryMessages  string // takes 1 to have them handled although they were replayed, else 0
	UndoRetry      string // of a message that could not be sent back; takes the reason that the retry gave it last
	DiscardMessage string
	ReplacePayload string
	ReplaceHash    string

	PauseConsumer string
	ServeConsumer string

	// The backlog, counted up to a limit. CountLapsed takes a time, twice. It counts all messages,
	// those that are due by then or whose process gave no answer, and those that are leased beyond it.
	CountStatus string
	CountLapsed string
	CountDue    string

	// SelectOldest returns since when the oldest of the first messages of a consumer and a status waits: since it
	// was stored, or, if an operator retried it and no attempt failed since, since it became due. It leaves out
	// those of the latter that a process has, and those that are RECEIVED and not due yet. It takes the time, twice,
	// which it returns for none.
	SelectOldest string

	// CountOutcomes takes the time to return as the oldest if there are no outcomes, then a consumer and a limit.
	CountOutcomes string

	// The audit table. ListAudit goes back in time; it takes a consumer, 0 for the outbox, and the
	// id before which to begin.
	ListAudit   string
	SelectAudit string

	// Actions on many messages. CountBulk counts further messages of an action and a consumer, unless the entry
	// is of another operator, or has another reason or detail. ListBulkMessages takes an entry, and the number behind
	// which to begin.
	CountBulk         string
	InsertBulk        string
	SelectBulk        string
	InsertBulkMessage string
	ListBulkMessages  string

	// The deletion of entries. OldestAudit takes a consumer, 0 for the outbox; DeleteBulkMessages an entry, and up
	// to which number.
	OldestAudit        string
	DeleteAudit        string
	DeleteBulkMessages string

	// Claims of messages that another system has handled. ImportClaims takes a consumer, a key, a
	// token and a time for each row; see [Rows].
	ImportClaims   string
	SelectImported string
}

var commonRemedy = Remedy{
	SelectListed: `
		SELECT c.name, c.epoch, c.key_source, ` + messageColumns + `
		FROM millrace_messages m
		JOIN millrace_consumers c ON c.id = m.consumer
		WHERE m.id IN (?)
		ORDER BY m.id`,
	ListOutlines: `
		SELECT c.name, c.epoch, c.key_source, ` + outlineColumns + `
		FROM millrace_messages m
		JOIN millrace_consumers c ON c.id = m.consumer
		WHERE m.id IN (?)
		ORDER BY m.id`,
	SelectErrors: `
		SELECT m.error_group, m.last_error, m.reason
		FROM millrace_messages m
		WHERE m.id IN (?)`,

	RetryMessages: `
		UPDATE millrace_messages
		SET status = 4, attempts = 0, reason = ?, reason_code = 0, allowed = allowed | ?, due_at = {now}
		WHERE consumer = ? AND message_id IN (?) AND status + 0 = ? AND lease_token = 0`,
	UndoRetry: `
		UPDATE millrace_messages
		SET status = ?, attempts = ?, reason = ?, reason_code = ?, due_at = ?
		WHERE consumer = ? AND message_id = ? AND status + 0 = 4 AND attempts = 0 AND lease_token = 0 AND reason = ?`,
	DiscardMessage: `
		DELETE FROM millrace_messages
		WHERE consumer = ? AND message_id = ? AND status + 0 = ? AND lease_token = 0`,
	ReplacePayload: `
		UPDATE millrace_messages
		SET payload = ?, payload_form = ?, payload_ref = ?, payload_hash = ?
		WHERE consumer = ? AND message_id = ? AND status + 0 = ? AND payload_hash = ? AND lease_token = 0`,
	ReplaceHash: `
		UPDATE millrace_claims
		SET payload_hash = ?, token = token + 1
		WHERE consumer = ? AND message_id = ? AND result = 0`,

	PauseConsumer: `
		UPDATE millrace_consumers
		SET paused = ?
		WHERE id = ?`,
	ServeConsumer: `
		UPDATE millrace_consumers
		SET served_until = GREATEST(served_until, {now} + ?)
		WHERE id = ?`,

	CountOutcomes: `
		SELECT COUNT(*), COALESCE(MIN(created_at), ?)
		FROM (
			SELECT created_at FROM millrace_outcomes
			WHERE consumer = ?
			ORDER BY consumer, message_id
			LIMIT ?) counted`,

	SelectAudit: `
		SELECT id, at, actor, action, reason, consumer, message_id, detail,
			COALESCE(bulk, 0) AS bulk, COALESCE(messages, 0) AS messages
		FROM millrace_audit
		WHERE id IN (?)
		ORDER BY id DESC`,

	CountBulk: `
		UPDATE millrace_audit
		SET messages = messages + ?
		WHERE bulk = ? AND consumer = ? AND detail = ? AND actor = ? AND action = ? AND reason = ?`,
	InsertBulk: `
		INSERT INTO millrace_audit (consumer, message_id, detail, bulk, messages, actor, action, reason, at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, {now})`,
	SelectBulk: `
		SELECT id, messages
		FROM millrace_audit
		WHERE bulk = ? AND consumer = ?`,
	InsertBulkMessage: `
		INSERT INTO millrace_audit_messages (entry, number, message_id, original, detail, at)
		VALUES (?, ?, ?, ?, ?, {now})`,
	ListBulkMessages: `
		SELECT number, at, message_id, original, detail
		FROM millrace_audit_messages
		WHERE entry = ? AND number > ?
		ORDER BY number
		LIMIT ?`,

	DeleteAudit: `
		DELETE FROM millrace_audit
		WHERE id IN (?)`,
	DeleteBulkMessages: `
		DELETE FROM millrace_audit_messages
		WHERE entry = ? AND number <= ?`,

	ImportClaims: `
		INSERT INTO millrace_claims (consumer, message_id, token, processed_at, payload_hash, result)
		VALUES (?, ?, ?, ?, 0, 4)
		ON CONFLICT (consumer, message_id) DO NOTHING`,
	SelectImported: `
		SELECT message_id, token, result
		FROM millrace_claims
		WHERE consumer = ? AND message_id IN (?)`,
}
