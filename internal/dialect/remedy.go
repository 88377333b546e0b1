package dialect

// Remedy holds the statements by which operators see open messages, and decide about them.
type Remedy struct {
	// ListMessages takes a consumer, a state, the id before the first, twice each a topic and a
	// group of errors, where NULL means any; from and below which time of arrival, and how
	// many. GroupFailures takes the same but for the id.
	ListMessages  string
	SelectListed  string
	SelectErrors  string
	GroupFailures string

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
}
