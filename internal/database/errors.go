package database

import (
	"errors"
	"fmt"

	"github.com/millrace-go/millrace/internal/dialect"
)

// Meanings of database errors. Packages inbox and outbox export them as their own.
var (
	ErrNotMigrated = errors.New("a table is missing: run Store.Migrate (or Publisher.Migrate), or apply what Schema prints")
	ErrReadOnly    = errors.New("the database is read-only: give the pool the primary server")
	ErrUnavailable = errors.New("the database does not answer, lets nobody in or has no room")
	ErrTooLarge    = errors.New("the message is larger than the database takes: raise its limit " +
		"(max_allowed_packet on MySQL), or store the payload elsewhere and send a reference")
)

// Explain adds to err what it means and what to do, once.
func Explain(err error) error {
	var meaning error
	switch dialect.Classify(err) {
	case dialect.NoTable:
		meaning = ErrNotMigrated
	case dialect.ReadOnly:
		meaning = ErrReadOnly
	case dialect.Unavailable, dialect.Unready:
		meaning = ErrUnavailable
	case dialect.TooLarge:
		meaning = ErrTooLarge
	}
	if meaning == nil || errors.Is(err, meaning) || errors.Is(err, ErrTooLarge) {
		return err
	}
	return fmt.Errorf("%w: %w", meaning, err)
}
