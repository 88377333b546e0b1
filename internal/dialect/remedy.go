package dialect

// Remedy holds the statements by which operators see open messages, and decide about them.
type Remedy struct {
	// These take first what a message must be like: a topic, twice, where NULL means any, and
	// from and below which time it arrived; then where to look: SearchStatus and GroupFailures
	// at a consumer and a state, SearchGroup and GroupFailure, which take the first and the
	// last state before, at a consumer and a group of errors; the searches at what is behind
	// an id; at how many rows; and GroupFailures how many groups to return. What was looked at
	// and is not like that is counted under 0.
	SearchStatus  string
	SearchGroup   string
	SelectListed  string
	ListOutlines  string // SelectListed without payloads
	SelectErrors  string
	GroupFailures string
	GroupFailure  string

	RetryMessage   string // takes 1 where a message is to be handled although it was replayed, else 0
	ReplacePayload string
	ReplaceHash    string

	PauseConsumer string
	ServeConsumer string

	// The backlog, counted up to a limit. CountLapsed takes the time twice, and
	// tells what is due by then, and what is not but leased.
	CountStatus  string
	CountLapsed  string
	CountDue     string
	SelectOldest string

	// CountOutcomes takes the time first, which is the age where there are none.
	CountOutcomes string

	// What operators did. ListAudit takes a consumer, 0 for the outbox, and the id before which
	// to begin, going back.
	ListAudit   string
	SelectAudit string

	// What another system has handled. ImportClaims takes a consumer, a key, a token and a time,
	// as often as [Rows] says.
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
		SELECT m.error_group, m.last_error
		FROM millrace_messages m
		WHERE m.id IN (?)`,

	RetryMessage: `
		UPDATE millrace_messages
		SET status = 4, attempts = 0, reason = ?, reason_code = 0, allowed = allowed | ?, due_at = {now}
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
		SELECT id, at, actor, action, reason, consumer, message_id, detail
		FROM millrace_audit
		WHERE id IN (?)
		ORDER BY id DESC`,

	ImportClaims: `
		INSERT INTO millrace_claims (consumer, message_id, token, processed_at, payload_hash, result)
		VALUES (?, ?, ?, ?, 0, 4)
		ON CONFLICT (consumer, message_id) DO NOTHING`,
	SelectImported: `
		SELECT message_id, token, result
		FROM millrace_claims
		WHERE consumer = ? AND message_id IN (?)`,
}
