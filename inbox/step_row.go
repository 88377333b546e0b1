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

	doubtful bool // we took it over in doubt
}

// stepRun is one call of [Step.Run].
type stepRun struct {
	step  *Step
	store *Store
	of    *subject
	id    [16]byte
	token int64
	sure  time.Time // until when no other process can take the step over

	problem  []byte // why the step was in doubt when we took it over
	uncalled bool   // Do was not called
	doubtful bool   // nor is it known whether an earlier attempt has done the step
}

// read returns the recorded step, or a row without a state if there is none.
func (r *stepRun) read(ctx context.Context, db sqlx.QueryerContext) (row stepRow, err error) {
	err = sqlx.GetContext(ctx, db, &row, r.store.dialect.Steps.SelectStep, r.id[:])
	if errors.Is(err, sql.ErrNoRows) {
		return stepRow{}, nil
	}
	if err != nil {
		return row, fmt.Errorf("read the record: %w", database.Explain(err))
	}
	return row, nil
}

// formerly continues with the step that was begun under the former key of the message, if there is one. The record keeps the
// epoch of that key, so that the janitor knows by which key it has the message.
func (r *stepRun) formerly(ctx context.Context) error {
	if r.of.formerID == nil {
		return nil
	}
	former := *r.of
	former.id, former.former = r.of.formerID, true
	former.name.Epoch--
	under := *r
	under.of, under.id = &former, former.uuid([]string{r.step.Name})
	row, err := under.read(ctx, r.store.db.Reader(ctx))
	if err == nil && row.State != 0 {
		*r = under
	}
	return err
}

// obtain takes the step, or returns it if it is done. If another process is running it, obtain
// waits at most Wait.
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
			return row, RetryAfter(fmt.Errorf("%w: it is running this step and did not finish within Wait, %v; its lease ends in %v",
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

// write runs work in a transaction of its own, for which it first waits until then: with one writer, a handler may have the
// turn. The end of ctx does not end the transaction: during COMMIT, nobody would know whether it is recorded.
func (r *stepRun) write(ctx context.Context, until time.Time, work func(ctx context.Context, tx *sqlx.Tx) error) error {
	waiting, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	leave, err := r.store.db.Enter(waiting)
	if err != nil {
		return err
	}
	defer leave()
	ctx, end := context.WithTimeout(context.WithoutCancel(ctx), afterwards)
	defer end()
	return r.store.db.WriteInTurn(ctx, func(tx *sqlx.Tx) error { return work(ctx, tx) })
}

// take records the intent, unless the step is done, stuck or taken.
func (r *stepRun) take(ctx context.Context) (row stepRow, taken bool, err error) {
	if err := ctx.Err(); err != nil {
		return row, false, err
	}
	s, lease := r.store, r.step.Lease.Microseconds()
	r.token = rand.Int64N(1<<62) + 1 //nolint:gosec // tells attempts apart, keeps no secret
	err = r.write(ctx, time.Now().Add(max(r.step.Lease, afterwards)), func(bound context.Context, tx *sqlx.Tx) error {
		taken, r.sure = false, time.Now().Add(r.step.Lease)
		_, err := tx.ExecContext(bound, s.dialect.Steps.InsertStep, r.id[:], []byte(s.config.Namespace),
			[]byte(r.of.name.Name), r.of.id, []byte(r.step.Name), r.of.name.Epoch, r.token, lease)
		if err != nil {
			return err
		}
		if row, err = r.read(bound, tx); err != nil || row.Token == r.token {
			taken = err == nil // our INSERT made the row
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
		if taken { // the answer to COMMIT may be all that was lost
			r.takeBack(ctx, row, err)
		}
		return row, false, fmt.Errorf("record the intent: %w", database.Explain(err))
	}
	return row, taken, nil
}

// takeBack ends a step that was taken, as far as we know, and for which Do is not called. If it fails, the step is in doubt
// when its lease ends.
func (r *stepRun) takeBack(ctx context.Context, row stepRow, cause error) {
	e := stepEnd{state: stored.StepNotDone, problem: errorText(cause)}
	if row.doubtful { // an earlier attempt may have done it
		e.state, e.problem = stored.StepBegun, r.problem
	}
	if _, err := r.insist(ctx, e); err != nil {
		r.unrecorded(err)
	}
}

// stuck reports whether the step is in doubt and neither Verify nor another Do can decide it. Nobody takes
// it over, so that the record of its call stays.
func (r *stepRun) stuck(row stepRow) bool {
	return row.State == stored.StepBegun && row.Remaining <= 0 && r.step.Verify == nil && !r.step.Idempotent
}

// stepEnd is how a step that was taken ends.
type stepEnd struct {
	state    stored.StepState
	verified bool
	kept     []byte // the result
	problem  []byte
}

// end records e, and reports whether the step was still ours.
func (r *stepRun) end(ctx context.Context, e stepEnd) (ours bool, err error) {
	until := time.Now().Add(afterwards)
	if r.sure.After(until) {
		until = r.sure
	}
	keep := int64(0) // in doubt from now on
	if e.state != stored.StepBegun {
		keep = r.keep().Microseconds()
	}
	verified := 0
	if e.verified {
		verified = 1
	}
	var n int64
	err = r.write(context.WithoutCancel(ctx), until, func(ctx context.Context, tx *sqlx.Tx) (err error) {
		n, err = database.Affected(tx.ExecContext(ctx, r.store.dialect.Steps.EndStep,
			e.state, verified, nullable(e.kept), nullable(e.problem), keep, r.id[:], r.token))
		return err
	})
	return n == 1, err
}

// insist is end, tried again for a while after an error: while another writer is in the way, for as long as nobody else can take
// the step over.
func (r *stepRun) insist(ctx context.Context, e stepEnd) (ours bool, err error) {
	giveUp := time.Now().Add(afterwards)
	for try := 0; ; try++ {
		ours, err = r.end(ctx, e)
		if err == nil && !ours && try > 0 { // an earlier try may have gone through, and only its answer was lost
			ours, err = r.ended(ctx)
		}
		waits := r.store.heldUp(err) && time.Now().Before(r.sure)
		if err == nil || time.Now().After(giveUp) && !waits {
			return ours, err
		}
		_ = database.Pause(context.WithoutCancel(ctx), try) // no error: this context never ends
	}
}

// ended reports whether the step, which has ended, was ended by this attempt.
func (r *stepRun) ended(ctx context.Context) (ours bool, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), afterwards)
	defer cancel()
	row, err := r.read(ctx, r.store.db)
	return row.Token == r.token, err
}

// nullable returns an argument that is NULL for nil: not every driver makes a nil slice NULL.
func nullable(b []byte) any {
	if b == nil {
		return nil
	}
	return b
}

// keep returns how long a step is remembered after its last use: longer than the claim that follows it.
func (r *stepRun) keep() time.Duration {
	if r.of.retention == Forever {
		return stored.Never
	}
	return r.of.retention + stored.StepMargin(r.of.retention)
}

// kept returns the result of a step that was done before. It extends how long the step is
// remembered, as if it were done now.
func (r *stepRun) kept(ctx context.Context, row stepRow) ([]byte, error) {
	least := r.keep() - stored.StepMargin(r.of.retention)/2
	if time.Duration(row.Remaining)*time.Microsecond < least {
		err := r.write(ctx, time.Now().Add(max(r.step.Lease, afterwards)), func(ctx context.Context, tx *sqlx.Tx) error {
			_, err := tx.ExecContext(ctx, r.store.dialect.Steps.TouchStep, r.keep().Microseconds(), r.id[:])
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("extend how long it is remembered: %w", database.Explain(err))
		}
	}
	return r.resultOf(ctx, row)
}

// resultOf returns the result in row. What opens it, such as a key service, has the time of a lease.
func (r *stepRun) resultOf(ctx context.Context, row stepRow) ([]byte, error) {
	if row.Problem != nil {
		return nil, Terminal(fmt.Errorf("it is done, but its result was not kept: %s", row.Problem))
	}
	if row.Result == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.step.Lease)
	defer cancel()
	result, err := r.store.openStep(ctx, &row.Step)
	if err != nil && unopenable(err) {
		err = Terminal(err)
	}
	return result, err
}

// sealStep returns a result as it is stored. nil stays nil.
func (r *stepRun) sealStep(ctx context.Context, result []byte) ([]byte, error) {
	if len(result) > MaxStepResult {
		return nil, fmt.Errorf("it has %d bytes, more than %d: return less, such as the provider's id",
			len(result), MaxStepResult)
	}
	if result == nil {
		return nil, nil
	}
	m := message.NewMessage(r.of.msg.UUID, result)
	if r.store.config.Payloads != nil { // the codec may read the metadata
		m.Metadata = r.of.msg.Metadata
	}
	return r.store.encodeOutcome(ctx, r.of.name.Name, r.step.Name, []*message.Message{m})
}

// sealOnce is sealStep for a step that is done: it returns a panic as an error, since the step must
// be recorded even without its result.
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
