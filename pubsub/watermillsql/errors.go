package watermillsql

import "errors"

// Conditions a caller may branch on, with errors.Is.
var (
	// ErrNoTable says that a table of a topic is missing.
	ErrNoTable = errors.New("the table is missing: call Initialize, or apply what Schema prints")

	// ErrTopic says that a topic's name cannot be kept apart from others as a table's name.
	ErrTopic = errors.New("the topic's name cannot be a table's name")

	// ErrClosed says that the publisher or the subscriber was closed.
	ErrClosed = errors.New("watermillsql: closed")
)
