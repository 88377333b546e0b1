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

	// CountRetries takes an action, a consumer and an id, and counts how often it was done to a
	// message since that was stored.
	CountRetries   string
	RetryMessage   string
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
