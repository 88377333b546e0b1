package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/stored"
)

// stepRow is a row of the steps table.
type stepRow struct {
	stored.Step

	doubtful bool // it was begun before, and is ours now
}

// stepRun is one call of [Step.Run].
type stepRun struct {
	step  *Step
	store *Store
	of    *subject
	id    [16]byte
	token int64
	sure  time.Time // until when nobody else can have taken the step

	problem []byte // why the step was in doubt
}

// read returns what is recorded, a row without a state where nothing is.
func (r *stepRun) read(ctx context.Context, db sqlx.QueryerContext) (row stepRow, err error) {
	err = sqlx.GetContext(ctx, db, &row, r.store.dialect.Steps.SelectStep, r.id[:])
	if errors.Is(err, sql.ErrNoRows) {
		return stepRow{}, nil
	}
	if err != nil {
		return row, fmt.Errorf("read what is recorded: %w", database.Explain(err))
	}
	return row, nil
}

// formerly makes the step the one that was begun under the former key of the message, if one was.
func (r *stepRun) formerly(ctx context.Context) error {
	if r.of.formerID == nil {
		return nil
	}
	former := *r.of
	former.id = r.of.formerID
	under := *r
	under.of, under.id = &former, former.uuid([]string{r.step.Name})
	row, err := under.read(ctx, r.store.db.Reader(ctx))
	if err == nil && row.State != 0 {
		*r = under
	}
	return err
}

// obtain takes the step, or returns it if it is done. It waits for another process that is at
// it for at most Wait.
func (r *stepRun) obtain(ctx context.Context) (stepRow, error) {
	deadline := time.Now().Add(r.step.Wait)
	for try := 0; ; try++ {
		row, taken, err := r.take(ctx)
		switch {
		case err != nil || taken || row.State == stored.StepDone:
			return row, err
		case r.stuck(row):
			return row, r.undecided(row)
		}
		left, remaining := time.Until(deadline), time.Duration(row.Remaining)*time.Microsecond
		if left <= 0 {
			return row, RetryAfter(fmt.Errorf("%w, which is at this step and was not done within Wait, %v: it has it for another %v",
				ErrInProgress, r.step.Wait, remaining), max(remaining, 0))
		}
		timer := time.NewTimer(min(nextLook(try, remaining), left))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return row, ctx.Err()
		}
	}
}

// take records the intent, in a transaction of its own, if nobody has the step.
func (r *stepRun) take(ctx context.Context) (row stepRow, taken bool, err error) {
	s, lease := r.store, r.step.Lease.Microseconds()
	r.token = rand.Int64N(1<<62) + 1 //nolint:gosec // tells attempts apart, keeps no secret
	began := time.Now()
	bound, cancel := context.WithTimeout(ctx, afterwards)
	defer cancel()
	err = s.db.Write(bound, func(tx *sqlx.Tx) error {
		taken = false
		_, err := tx.ExecContext(bound, s.dialect.Steps.InsertStep, r.id[:], []byte(s.config.Namespace),
			[]byte(r.of.name.Name), r.of.id, []byte(r.step.Name), r.of.name.Epoch, r.token, lease)
		if err != nil {
			return err
		}
		if row, err = r.read(bound, tx); err != nil || row.Token == r.token {
			taken = err == nil // else it is another's, or was
			return err
		}
		if row.State == stored.StepDone || row.State == stored.StepBegun && row.Remaining > 0 || r.stuck(row) {
			return nil
		}
		n, err := database.Affected(tx.ExecContext(bound, s.dialect.Steps.TakeStep,
			r.token, r.of.name.Epoch, lease, r.id[:], row.Token))
		taken, row.doubtful, r.problem = n == 1, row.State == stored.StepBegun, row.Problem
		return err
	})
	if err != nil {
		return row, false, fmt.Errorf("record the intent: %w", database.Explain(err))
	}
	r.sure = began.Add(r.step.Lease)
	return row, taken, nil
}

// stuck reports whether the step is in doubt and neither Verify nor Do may end that. Nobody takes it: what is
// recorded of the call that was made stays.
func (r *stepRun) stuck(row stepRow) bool {
	return row.State == stored.StepBegun && row.Remaining <= 0 && r.step.Verify == nil && !r.step.Idempotent
}

// stepEnd is what becomes of a step that was taken.
type stepEnd struct {
	state    stored.StepState
	verified bool
	kept     []byte // the result
	problem  []byte
}

// end records e, in a transaction of its own, if the step is still ours.
func (r *stepRun) end(ctx context.Context, e stepEnd) (ours bool, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), afterwards)
	defer cancel()
	keep := int64(0) // in doubt from now on
	if e.state != stored.StepBegun {
		keep = r.keep().Microseconds()
	}
	verified := 0
	if e.verified {
		verified = 1
	}
	var n int64
	err = r.store.db.Write(ctx, func(tx *sqlx.Tx) (err error) {
		n, err = database.Affected(tx.ExecContext(ctx, r.store.dialect.Steps.EndStep,
			e.state, verified, nullable(e.kept), nullable(e.problem), keep, r.id[:], r.token))
		return err
	})
	return n == 1, err
}

// nullable returns an argument that is NULL where there is nothing: a nil slice is not on every driver.
func nullable(b []byte) any {
	if b == nil {
		return nil
	}
	return b
}

// keep is how long a step is remembered after its last use: longer than the claim that follows.
func (r *stepRun) keep() time.Duration {
	if r.of.retention == Forever {
		return stored.Never
	}
	return r.of.retention + stored.StepMargin(r.of.retention)
}

// kept returns the result of a step that was done before, which is remembered for as long as
// if it had been done now.
func (r *stepRun) kept(ctx context.Context, row stepRow) ([]byte, error) {
	least := r.keep() - stored.StepMargin(r.of.retention)/2
	if time.Duration(row.Remaining)*time.Microsecond < least {
		bound, cancel := context.WithTimeout(ctx, afterwards)
		defer cancel()
		err := r.store.db.Write(bound, func(tx *sqlx.Tx) error {
			_, err := tx.ExecContext(bound, r.store.dialect.Steps.TouchStep, r.keep().Microseconds(), r.id[:])
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("remember it for longer: %w", database.Explain(err))
		}
	}
	return r.resultOf(ctx, row)
}

// resultOf returns the result in row.
func (r *stepRun) resultOf(ctx context.Context, row stepRow) ([]byte, error) {
	if row.Problem != nil {
		return nil, Terminal(fmt.Errorf("it is done, but its result was not kept: %s", row.Problem))
	}
	if row.Result == nil {
		return nil, nil
	}
	result, err := r.store.openStep(ctx, &row.Step)
	if err != nil && unopenable(err) {
		err = Terminal(err)
	}
	return result, err
}

// sealStep returns what is stored of a result, nil of none.
func (r *stepRun) sealStep(ctx context.Context, result []byte) ([]byte, error) {
	if len(result) > MaxStepResult {
		return nil, fmt.Errorf("it has %d bytes, and at most %d are kept: return less, such as the provider's id",
			len(result), MaxStepResult)
	}
	if result == nil {
		return nil, nil
	}
	m := message.NewMessage(r.of.msg.UUID, result)
	if r.store.config.Payloads != nil { // which may want it
		m.Metadata = r.of.msg.Metadata
	}
	return r.store.encodeOutcome(ctx, r.of.name.Name, r.step.Name, []*message.Message{m})
}

// sealOnce is sealStep of a step that is done, which has to be recorded whatever becomes of its result.
func (r *stepRun) sealOnce(ctx context.Context, result []byte) (kept []byte, err error) {
	defer recovered("seal it", &err)
	kept, err = r.sealStep(ctx, result)
	return kept, sound(err)
}

// openStep returns the result in row.
func (s *Store) openStep(ctx context.Context, row *stored.Step) ([]byte, error) {
	msgs, problems, err := s.decodeOutcome(ctx, string(row.Consumer), string(row.Name), row.Result)
	if err == nil && len(msgs) != 1 {
		err = fmt.Errorf("there are %d results", len(msgs))
	}
	if err == nil {
		err = problems[0]
	}
	if err != nil {
		return nil, fmt.Errorf("open its result: %w", err)
	}
	return msgs[0].Payload, nil
}
