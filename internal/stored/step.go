package stored

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"time"

	"github.com/jmoiron/sqlx"
)

// StepState is the state of a step.
type StepState int16

// States of steps.
const (
	StepBegun   StepState = 1 // in doubt once its lease has ended
	StepDone    StepState = 2
	StepNotDone StepState = 3
)

// Step is a row of the steps table.
type Step struct {
	ID        []byte    `db:"id"`
	Namespace []byte    `db:"namespace"`
	Consumer  []byte    `db:"consumer"`
	Epoch     int       `db:"epoch"`
	MessageID []byte    `db:"message_id"`
	Name      []byte    `db:"name"`
	State     StepState `db:"state"`
	Verified  bool      `db:"verified"`
	Token     int64     `db:"token"`
	Attempts  int       `db:"attempts"`
	StartedAt int64     `db:"started_at"`
	EndedAt   int64     `db:"ended_at"`
	Result    []byte    `db:"result"`
	Problem   []byte    `db:"problem"`
	Remaining int64     `db:"remaining"`
}

// InDoubt reports whether nobody knows whether the step was done.
func (s *Step) InDoubt() bool { return s.State == StepBegun && s.Remaining <= 0 }

// Undecided reports whether the step has been in doubt for too long: no further attempt at its message will decide it.
func (s *Step) Undecided() bool { return s.InDoubt() && s.Remaining < -(15*time.Minute).Microseconds() }

// Step returns the step with this id, or [ErrNotFound] if the namespace has none.
func (r *Rows) Step(ctx context.Context, db sqlx.QueryerContext, id []byte) (row Step, err error) {
	err = sqlx.GetContext(ctx, db, &row, r.Dialect.Steps.SelectStep, id)
	if errors.Is(err, sql.ErrNoRows) || err == nil && string(row.Namespace) != r.Namespace {
		return row, ErrNotFound
	}
	return row, err
}

// StepsInDoubt lists steps of the namespace that are in doubt, the oldest first.
func (r *Rows) StepsInDoubt(ctx context.Context, limit int) (all []Step, err error) {
	err = sqlx.SelectContext(ctx, r.Reader(ctx), &all, r.Dialect.Steps.SelectDoubtful, []byte(r.Namespace), limit)
	return all, err
}

// StepMargin returns how much longer than its message a step is remembered.
func StepMargin(retention time.Duration) time.Duration { return max(2*time.Hour, retention/8) }

// FormatID formats id as a UUID.
func FormatID(id [16]byte) string {
	s := hex.EncodeToString(id[:])
	return s[:8] + "-" + s[8:12] + "-" + s[12:16] + "-" + s[16:20] + "-" + s[20:]
}
