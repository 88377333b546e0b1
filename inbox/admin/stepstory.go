package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/stored"
)

// StepState is the state of a step.
type StepState int16

// States of steps.
const (
	StepRunning StepState = 1 // a process is running the step
	StepDone    StepState = 2
	StepNotDone StepState = 3 // the next attempt at the message does it
	StepInDoubt StepState = 4 // it was begun, but not known to be done
)

// String returns the name of the state.
func (s StepState) String() string {
	switch s {
	case StepRunning:
		return "running"
	case StepDone:
		return "done"
	case StepNotDone:
		return "not done"
	case StepInDoubt:
		return "in doubt"
	}
	return fmt.Sprintf("StepState(%d)", int16(s))
}

// StepRecord is the record of an [inbox.Step].
type StepRecord struct {
	ID        string // passed to Do
	Consumer  string
	Epoch     int    // of the last attempt
	MessageID string // the key
	Name      string
	State     StepState
	Verified  bool // Verify or an operator found out afterwards that it was done
	Attempts  int
	StartedAt time.Time // of the first
	EndedAt   time.Time // of the last; zero while it runs, or if the process died
	Result    []byte    // only in Admin.Story
	Problem   string    // the last error, or why there is no Result
}

func recordOf(r *stored.Step) StepRecord {
	c := StepRecord{
		ID: stored.FormatID([16]byte(r.ID)), Consumer: string(r.Consumer), Epoch: r.Epoch, MessageID: keycode.String(r.MessageID),
		Name: string(r.Name), State: StepState(r.State), Verified: r.Verified, Attempts: r.Attempts,
		StartedAt: time.UnixMicro(r.StartedAt).UTC(), Problem: string(r.Problem),
	}
	if r.InDoubt() {
		c.State = StepInDoubt
	}
	if r.EndedAt != 0 {
		c.EndedAt = time.UnixMicro(r.EndedAt).UTC()
	}
	return c
}

// stepWhole returns a step with its result.
func (a *Admin) stepWhole(ctx context.Context, row *stored.Step) StepRecord {
	c := recordOf(row)
	if row.Result != nil {
		result, err := a.inbox.StepResult(ctx, row)
		if err != nil {
			c.Problem = err.Error()
		}
		c.Result = result
	}
	return c
}

// stepOutline returns a step without its result.
func stepOutline(_ context.Context, row *stored.Step) StepRecord { return recordOf(row) }

// tellSteps adds the steps of the message with the stored key id.
func (a *Admin) tellSteps(ctx context.Context, id []byte, t teller, story *Story) error {
	var rows []stored.Step
	err := sqlx.SelectContext(ctx, a.rows.Reader(ctx), &rows, a.rows.Dialect.Steps.StorySteps, []byte(a.rows.Namespace), id)
	for _, row := range rows {
		story.Steps = append(story.Steps, t.step(ctx, &row))
	}
	return err
}

// StepsInDoubt lists steps of which nobody knows whether they were done, the oldest first: at most
// limit (up to MaxPage). The next attempt at the message decides most of them, because it calls
// Verify. The janitor never deletes a step in doubt.
func (a *Admin) StepsInDoubt(ctx context.Context, limit int) ([]StepRecord, error) {
	err := validPage(limit)
	var rows []stored.Step
	if err == nil {
		rows, err = a.rows.StepsInDoubt(ctx, limit)
	}
	if err != nil {
		return nil, fmt.Errorf("inbox: list steps in doubt: %w", database.Explain(err))
	}
	all := make([]StepRecord, 0, len(rows))
	for _, row := range rows {
		all = append(all, recordOf(&row))
	}
	return all, nil
}
