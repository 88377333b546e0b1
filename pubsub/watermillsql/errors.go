package watermillsql

import (
	"errors"

	"github.com/millrace-go/millrace/internal/prefix"
)

// Conditions a caller may branch on, with errors.Is.
var (
	// ErrNoTable says that a table of a topic is missing.
	ErrNoTable = errors.New("watermillsql: the table is missing: call Initialize, or apply what Schema prints")

	// ErrTopic says that a topic's name cannot be part of a table's name, or that its table would
	// be that of another topic.
	ErrTopic = errors.New("watermillsql: the topic's name cannot be a table's name")

	// ErrClosed says that the publisher or the subscriber was closed.
	ErrClosed = errors.New("watermillsql: the publisher or subscriber is closed")
)

// errorf is [prefix.Errorf] for this package.
func errorf(format string, args ...any) error {
	return prefix.Errorf("watermillsql", format, args...)
}
