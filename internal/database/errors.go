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

// ErrCharset says that the connections change texts on their way.
var ErrCharset = errors.New("the connection cannot carry each character: remove charset and collation from the connection string, or set charset=utf8mb4")

// Legible returns an ErrCharset that says what is wrong, unless that is empty.
func Legible(charset string) error {
	if charset == "" {
		return nil
	}
	return fmt.Errorf("%w (%s)", ErrCharset, charset)
}

// unavailable is an ErrUnavailable of a server that answers. Its text names the cause.
type unavailable string

func (u unavailable) Error() string { return string(u) }

// Is reports that u is an ErrUnavailable.
func (u unavailable) Is(target error) bool { return target == ErrUnavailable }

const (
	errDenied = unavailable("the role lacks a right: Store.Check and millrace check name those that are missing on Millrace's tables")
	errFull   = unavailable("the database has no room, or cannot write to its disk")
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
		switch {
		case dialect.Denied(err):
			meaning = errDenied
		case dialect.Full(err):
			meaning = errFull
		default:
			meaning = ErrUnavailable
		}
	case dialect.TooLarge:
		meaning = ErrTooLarge
	}
	if meaning == nil || errors.Is(err, meaning) || errors.Is(err, ErrTooLarge) {
		return err
	}
	return fmt.Errorf("%w: %w", meaning, err)
}
