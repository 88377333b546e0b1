package outbox

import (
	"errors"
	"fmt"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/prefix"
)

// Conditions a caller may branch on, with errors.Is.
var (
	// ErrNoTx says that a message's context carries no transaction.
	ErrNoTx = errors.New("outbox: no transaction in the message's context: " +
		"pass the context of the handler, of outbox.InTx or of outbox.WithTx to the CQRS bus that publishes it, " +
		"or to message.NewMessageWithContext; for messages that a handler returns, set Inbox.Outbox; " +
		"Config.Standalone stores messages without one")

	// ErrTxEnded says that the transaction in a message's context has ended.
	ErrTxEnded = errors.New("outbox: the transaction in the message's context has ended: " +
		"publish before it is committed")

	// ErrClosed says that the publisher was closed, and a message carries no transaction.
	ErrClosed = errors.New("outbox: the publisher is closed")

	// ErrNotFound says that the outbox has no message with this id.
	ErrNotFound = errors.New("outbox: not found")

	// ErrWrongState says that the outbox has the message, but it is not parked. The error names its state.
	ErrWrongState = errors.New("outbox: wrong state")

	// ErrNotMigrated says that tables or columns are missing.
	ErrNotMigrated = database.ErrNotMigrated

	// ErrReadOnly says that the database takes no writes.
	ErrReadOnly = database.ErrReadOnly

	// ErrUnavailable says that the database does not answer, refuses connections, is full or denies a right.
	ErrUnavailable = database.ErrUnavailable

	// ErrTooLarge says that a message has more bytes than the database takes at once.
	ErrTooLarge = database.ErrTooLarge

	// ErrPermanent is what [Permanent] marks an error with.
	ErrPermanent = errors.New("outbox: retrying will not help")
)

// errorf is [prefix.Errorf] for this package.
func errorf(format string, args ...any) error { return prefix.Errorf("outbox", format, args...) }

// Permanent marks err as one about the message and not about the broker: the message
// cannot be routed, or is too large. A [Relay] counts such an error as an attempt even
// while nothing else gets through. Permanent returns nil for nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

type permanentError struct{ err error }

func (e *permanentError) Error() string        { return e.err.Error() }
func (e *permanentError) Unwrap() error        { return e.err }
func (e *permanentError) Is(target error) bool { return target == ErrPermanent } //nolint:errorlint // this is what Is does

// A PartialError is returned by a publisher that knows which messages of a call the broker
// confirmed. A [Relay] then retries only those that failed; after any other error, also one
// that joins this with others, it retries all of them.
type PartialError struct {
	// Errors has one entry for each message, in their order; nil means confirmed.
	Errors []error
}

func (e *PartialError) Error() string {
	failed := e.Unwrap()
	if len(failed) == 0 {
		return fmt.Sprintf("a PartialError about %d messages, of which none failed", len(e.Errors))
	}
	return fmt.Sprintf("%d of %d messages were not published, the first because: %v",
		len(failed), len(e.Errors), failed[0])
}

// Unwrap returns the errors of the messages that failed.
func (e *PartialError) Unwrap() []error {
	var failed []error
	for _, err := range e.Errors {
		if err != nil {
			failed = append(failed, err)
		}
	}
	return failed
}
