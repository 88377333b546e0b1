package inbox

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/keycode"
)

// StepDecision is what an operator found out about a step in doubt.
type StepDecision int

// What a step can have been.
const (
	StepWasDone    StepDecision = iota + 1
	StepWasNotDone              // it is done with the next attempt at its message
)

// DecideStep says whether the step in doubt with this id, which [Store.StepsInDoubt] and the
// error of the message name, was done. It is audited. [ErrNotFound] is returned for a step that
// is not in doubt. A step decided as done has no result.
func (s *Store) DecideStep(ctx context.Context, id string, decision StepDecision, by Operator) error {
	if err := by.validate(); err != nil {
		return err
	}
	row, err := s.stepInDoubt(ctx, id)
	if err == nil {
		err = s.db.Write(ctx, func(tx *sqlx.Tx) error { return s.decideStep(ctx, tx, row, decision, by) })
	}
	if err != nil {
		return fmt.Errorf("inbox: decide step %q: %w", id, database.Explain(err))
	}
	s.sayDecided(by, decideAction, watermill.LogFields{
		"step": string(row.Name), "consumer": string(row.Consumer), "epoch": row.Epoch, "message_id": keycode.String(row.MessageID),
	})
	return nil
}

// decideAction is what the audit table calls it.
const decideAction = "decide step"

func (s *Store) stepInDoubt(ctx context.Context, id string) (row stepRow, err error) {
	raw, err := hex.DecodeString(strings.ReplaceAll(id, "-", ""))
	if err != nil || len(raw) != 16 {
		return row, errors.New("it is not the id of a step")
	}
	err = sqlx.GetContext(ctx, s.db.Reader(ctx), &row, s.dialect.Steps.SelectStep, raw)
	switch {
	case errors.Is(err, sql.ErrNoRows), err == nil && string(row.Namespace) != s.config.Namespace:
		return row, ErrNotFound
	case err == nil && row.record().State != StepInDoubt:
		return row, fmt.Errorf("it is %s: %w", row.record().State, ErrNotFound)
	}
	return row, err
}

func (s *Store) decideStep(ctx context.Context, tx *sqlx.Tx, row stepRow, decision StepDecision, by Operator) error {
	state, known := map[StepDecision]stepState{StepWasDone: stepDone, StepWasNotDone: stepNotDone}[decision]
	if !known {
		return fmt.Errorf("decision %d is none of the constants", decision)
	}
	token := rand.Int64N(1<<62) + 1 //nolint:gosec // tells attempts apart, keeps no secret
	taken, err := database.Affected(tx.ExecContext(ctx, s.dialect.Steps.TakeStep, token, row.Epoch, 0, row.ID, row.Token))
	if err == nil && taken != 1 {
		err = fmt.Errorf("it is not in doubt any more: %w", ErrNotFound)
	}
	if err != nil {
		return err
	}
	consumer, err := s.stepConsumer(ctx, tx, row)
	if err != nil {
		return err
	}
	keep := never
	if retention := time.Duration(consumer.Retention) * time.Microsecond; retention != 0 {
		keep = retention + stepMargin(retention)
	}
	_, err = tx.ExecContext(ctx, s.dialect.Steps.EndStep, state, 1, nil, nil, keep.Microseconds(), row.ID, token)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, s.dialect.InsertAudit, []byte(by.Name), []byte(decideAction), []byte(by.Reason),
		consumer.ID, row.MessageID, fmt.Appendf(nil, "step %q was %s", row.Name, StepState(state)))
	return err
}

// stepConsumer returns the consumer that a step was done for, of the inbox or of leases.
func (s *Store) stepConsumer(ctx context.Context, tx *sqlx.Tx, row stepRow) (c consumerRow, err error) {
	for _, name := range []string{string(row.Consumer), leaseNames + string(row.Consumer)} {
		err = tx.GetContext(ctx, &c, s.dialect.SelectConsumer, []byte(s.config.Namespace), []byte(name), row.Epoch)
		if !errors.Is(err, sql.ErrNoRows) {
			return c, err
		}
	}
	return c, nil // leases that are kept elsewhere
}
