package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/stored"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/replay"
)

// Exit codes.
const (
	exitDone        = 0
	exitFailed      = 1 // or a check found errors
	exitUsage       = 2 // or a confirmation is missing
	exitNotFound    = 3 // or nothing matched
	exitUnreachable = 4
	exitWrongState  = 5
	exitInterrupted = 130 // as shells have it: 128 and the number of the signal
)

// coded is an error with the exit code for it.
type coded struct {
	code int
	err  error
}

func (c *coded) Error() string { return c.err.Error() }

func (c *coded) Unwrap() error { return c.err }

// silent ends the command with a code and prints nothing more.
type silent struct{ code int }

func (s *silent) Error() string { return fmt.Sprintf("exit %d", s.code) }

func usagef(format string, args ...any) error { return &coded{exitUsage, fmt.Errorf(format, args...)} }

func notFoundf(format string, args ...any) error {
	return &coded{exitNotFound, fmt.Errorf(format, args...)}
}

// unknownKey says that the database does not know the message that explain was asked for.
type unknownKey struct{ coded }

// partly is err of an action that has done something before. The codes of err itself say that nothing was changed.
func partly(done int, what string, err error) error {
	if done == 0 || err == nil {
		return err
	}
	return &coded{exitFailed, fmt.Errorf("%s; then %w", what, err)}
}

func exitCode(err error) int {
	var c *coded
	var s *silent
	var cursor stored.CursorError
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &s):
		return s.code
	case errors.As(err, &c):
		return c.code
	case errors.As(err, &cursor):
		return exitUsage
	case unavailable(err) && !dialect.Denied(err) && !dialect.Full(err): // else it answers, and says what is wrong
		return exitUnreachable
	case errors.Is(err, inbox.ErrNotFound), errors.Is(err, outbox.ErrNotFound):
		return exitNotFound
	case errors.Is(err, inbox.ErrWrongState), errors.Is(err, outbox.ErrWrongState):
		return exitWrongState
	}
	return exitFailed
}

// unavailable reports whether the database does not serve: the next statement would fail as well.
func unavailable(err error) bool {
	return errors.Is(err, inbox.ErrUnavailable) || errors.Is(err, outbox.ErrUnavailable)
}

// understood adds what only this run knows about err.
func (a *app) understood(err error) error {
	switch {
	case !a.started && exitCode(err) == exitFailed && a.results.err == nil: // cobra's own
		return &coded{exitUsage, err}
	case a.interrupt.Err() != nil && exitCode(err) != exitUsage:
		return &coded{exitInterrupted, fmt.Errorf("interrupted: %w", err)}
	case errors.Is(err, context.DeadlineExceeded) && exitCode(err) == exitFailed:
		return fmt.Errorf("%w: it took longer than --timeout %v", err, a.flags.timeout)
	}
	return err
}

// hint returns advice that the text of err does not contain.
func (a *app) hint(err error) string {
	switch {
	case !a.started && a.results.err == nil:
		return "Run millrace --help for the commands."
	case errors.Is(err, inbox.ErrNotMigrated), errors.Is(err, outbox.ErrNotMigrated):
		return "Create the tables with: millrace migrate. If they exist, say where with --schema or --prefix."
	case errors.Is(err, inbox.ErrNotServed):
		return "Start the service, or add --through-outbox: a relay then sends the message to its topic again."
	case errors.Is(err, replay.ErrSideEffects):
		return "Name each with --into-side-effects."
	case exitCode(err) == exitUnreachable && !errors.Is(err, errNoFile):
		return "Does the DSN (--dsn or MILLRACE_DSN) name a server that runs and lets this user in?"
	}
	return ""
}
