package admin

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/stored"
)

// StepDecision is an operator's finding about a step in doubt.
type StepDecision int

// Findings about a step.
const (
	StepWasDone    StepDecision = iota + 1
	StepWasNotDone              // the next attempt at its message does it
)

// DecideStep records whether the step in doubt with this id was done, and who said so. The id is the
// one that [Admin.StepsInDoubt] and the message's error name. A step decided as done has no result.
// Let the message of a middleware.Deduplicate come again within 7 days, also if its Retention is
// longer: until then the decision is kept for little longer than that.
// DecideStep returns [inbox.ErrNotFound] if there is no such step, and [inbox.ErrWrongState] if it is
// not in doubt.
func (a *Admin) DecideStep(ctx context.Context, id string, decision StepDecision, by Operator) error {
	if err := by.Validate(); err != nil {
		return err
	}
	row, err := a.stepInDoubt(ctx, id)
	var consumer stored.Consumer
	if err == nil {
		consumer, err = a.stepConsumer(ctx, row)
	}
	if err == nil {
		err = a.rows.Write(ctx, func(tx *sqlx.Tx) error { return a.decideStep(ctx, tx, row, consumer, decision, by) })
	}
	if err != nil {
		return fmt.Errorf("inbox: decide step %q: %w", id, database.Explain(err))
	}
	a.inbox.Decided(by, decideAction, watermill.LogFields{
		"step": string(row.Name), "consumer": string(row.Consumer), "epoch": row.Epoch, "message_id": keycode.String(row.MessageID),
	})
	return nil
}

// decideAction is the action's name in the audit table.
const decideAction = "decide step"

func (a *Admin) stepInDoubt(ctx context.Context, id string) (row stored.Step, err error) {
	raw, err := hex.DecodeString(strings.ReplaceAll(id, "-", ""))
	if err != nil || len(raw) != 16 {
		return row, errors.New("this is not the id of a step")
	}
	return a.findInDoubt(ctx, a.rows.Reader(ctx), raw)
}

func (a *Admin) findInDoubt(ctx context.Context, db sqlx.QueryerContext, id []byte) (stored.Step, error) {
	row, err := a.rows.Step(ctx, db, id)
	if err == nil && !row.InDoubt() {
		err = fmt.Errorf("it is %s, and only a step in doubt can be decided: %w", recordOf(&row).State, inbox.ErrWrongState)
	}
	return row, err
}

func (a *Admin) decideStep(
	ctx context.Context, tx *sqlx.Tx, row stored.Step, consumer stored.Consumer, decision StepDecision, by Operator,
) error {
	state, known := map[StepDecision]stored.StepState{StepWasDone: stored.StepDone, StepWasNotDone: stored.StepNotDone}[decision]
	if !known {
		return fmt.Errorf("decision %d is not one of the constants", decision)
	}
	token := rand.Int64N(1<<62) + 1 //nolint:gosec // tells attempts apart, keeps no secret
	taken, err := database.Affected(tx.ExecContext(ctx, a.rows.Dialect.Steps.TakeStep, token, row.Epoch, 0, row.ID, row.Token))
	if err == nil && taken != 1 {
		if _, err = a.findInDoubt(ctx, tx, row.ID); err == nil {
			err = fmt.Errorf("another attempt at it began and ended meanwhile: look again: %w", inbox.ErrWrongState)
		}
	}
	if err != nil {
		return err
	}
	keep := keptDecided(consumer).Microseconds()
	_, err = tx.ExecContext(ctx, a.rows.Dialect.Steps.EndStep, state, 1, nil, nil, keep, row.ID, token)
	if err != nil {
		return err
	}
	return a.rows.AuditOf(ctx, tx, by, decideAction, consumer.ID, row.MessageID, fmt.Sprintf("step %q was %s", row.Name, StepState(state)))
}

// stepConsumer returns the consumer of a step, of the inbox or of leases. The consumer of leases that are kept
// elsewhere has no row yet: stepConsumer registers it, since the audit names consumers by their rows.
func (a *Admin) stepConsumer(ctx context.Context, row stored.Step) (stored.Consumer, error) {
	c, err := a.rows.Consumer(ctx, string(row.Consumer), row.Epoch)
	if !errors.Is(err, stored.ErrNotFound) {
		return c, err
	}
	leases := stored.Name{Name: stored.LeaseNames + string(row.Consumer), Epoch: row.Epoch}
	if _, err = a.rows.Registered(stored.Self{Name: leases}).Row(ctx); err != nil {
		return c, err
	}
	return a.rows.Consumer(ctx, leases.Name, leases.Epoch)
}

// keptDecided returns how long a decided step of c is remembered. The row of a consumer of leases has
// no retention; the default is used until the next attempt at the message, which knows it.
func keptDecided(c stored.Consumer) time.Duration {
	retention := time.Duration(c.Retention) * time.Microsecond
	switch {
	case strings.HasPrefix(string(c.Name), stored.LeaseNames):
		retention = 7 * 24 * time.Hour
	case retention == 0:
		return stored.Never
	}
	return retention + stored.StepMargin(retention)
}
