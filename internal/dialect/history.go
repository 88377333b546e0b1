package dialect

// History holds the statements for what went wrong with a message, or held it up.
type History struct {
	// InsertHistory keeps how the open row of a message is now. It takes whether an attempt has failed, then twice
	// the consumer and the id. Only one who holds the message may call it.
	InsertHistory string
	StoryHistory  string
	DeleteHistory string
}
