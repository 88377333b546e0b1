package inbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/stored"
)

// work runs a step that was taken, and records how it ended.
func (r *stepRun) work(ctx context.Context, doubtful bool) ([]byte, error) {
	bound, cancel := context.WithDeadlineCause(ctx, r.sure.Add(-r.step.Lease/10), errStepLease)
	defer cancel()
	ended := false
	defer func() {
		if !ended { // a panic, which continues
			_ = r.giveUp(ctx, errPanic)
		}
	}()
	result, verified, err := r.call(bound, doubtful)
	ended, err = true, sound(err)
	if err == nil {
		return r.record(ctx, result, verified)
	}
	if ctx.Err() == nil && errors.Is(context.Cause(bound), errStepLease) {
		err = fmt.Errorf("its Lease, %v, was about to end: %w", r.step.Lease, err)
	}
	return nil, r.giveUp(ctx, err)
}

var errStepLease = errors.New("the lease of the step is about to end")

// call asks Verify about a step in doubt, and calls Do unless the step was done, or ctx has ended.
func (r *stepRun) call(ctx context.Context, doubtful bool) (result []byte, verified bool, err error) {
	id := stored.FormatID(r.id)
	ctx = context.WithValue(ctx, subjectKey{}, stepOwner{ctx.Value(subjectKey{}), r.of.former}) // ID agrees with id
	if doubtful && r.step.Verify != nil {
		done, result, err := r.step.Verify(withSteps(ctx, r.step.Name, "verify"), id)
		if err != nil {
			return nil, false, fmt.Errorf("%w, and Verify failed: %w", ErrInDoubt, err)
		}
		if done {
			return result, true, nil
		}
		doubtful = false
	}
	if err := ctx.Err(); err != nil {
		r.uncalled, r.doubtful = true, doubtful
		return nil, false, err
	}
	result, err = r.step.Do(withSteps(ctx, r.step.Name), id)
	return result, false, err
}

// undecided returns the error of a step in doubt that only an operator can decide.
func (r *stepRun) undecided(row stepRow) error {
	what := "recorded no result"
	if len(row.Problem) > 0 {
		what = "failed: " + string(row.Problem)
	}
	return fmt.Errorf("%w: an earlier attempt %s; give the step a Verify that asks the provider for %s, "+
		"declare it Idempotent if the provider takes that id as its idempotency key, or decide with Admin.DecideStep or millrace steps decide",
		ErrInDoubt, what, stored.FormatID(r.id))
}

// giveUp releases a step that failed, and returns the error for the handler. If Do was not called, or
// Verify failed, the record still says why the step was in doubt before. That a step is not done is recorded as
// one that is done is: without the record it would be in doubt.
func (r *stepRun) giveUp(ctx context.Context, cause error) error {
	end := r.end
	e := stepEnd{state: stored.StepBegun, problem: errorText(cause)}
	var refused *notDoneError
	switch unknown := errors.Is(cause, ErrInDoubt); { // an error of Verify says nothing about Do
	case r.uncalled && r.doubtful, unknown && len(r.problem) > 0:
		e.problem = r.problem
	case r.uncalled, errors.As(cause, &refused) && !unknown:
		e.state, end = stored.StepNotDone, r.insist
	}
	ours, err := end(ctx, e)
	if err != nil {
		r.unrecorded(err)
	}
	if err == nil && !ours {
		return fmt.Errorf("%w; %w", cause, ErrLeaseLost)
	}
	return cause
}

func (r *stepRun) unrecorded(err error) {
	r.log().Error("inbox: the failure of a step could not be recorded; it is in doubt when its lease ends", database.Explain(err), nil)
}

// record stores the result of a step that is done. While the database does not answer, it tries
// again for a while, since the step cannot be undone.
func (r *stepRun) record(ctx context.Context, result []byte, verified bool) ([]byte, error) {
	e := stepEnd{state: stored.StepDone, verified: verified}
	var unkept error
	if e.kept, unkept = r.sealInTime(ctx, result); unkept != nil {
		e.problem = errorText(unkept)
	}
	ours, err := r.insist(ctx, e)
	switch {
	case err != nil:
		return nil, fmt.Errorf("it is done, but that could not be recorded, so it is in doubt: %w", database.Explain(err))
	case !ours:
		return r.lost(ctx, result, e)
	case unkept != nil:
		return nil, Terminal(fmt.Errorf("it is done, but its result was not kept: %w", unkept))
	}
	return result, nil
}

// sealInTime is sealOnce within the lease, and for a while in any case: a step whose result is not kept cannot be repeated.
func (r *stepRun) sealInTime(ctx context.Context, result []byte) (kept []byte, err error) {
	until := r.sure.Add(-r.step.Lease / 10)
	if least := time.Now().Add(afterwards); until.Before(least) {
		until = least
	}
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), until)
	defer cancel()
	return r.sealOnce(ctx, result)
}

// lost ends a step that is done, but that another process has taken over since.
func (r *stepRun) lost(ctx context.Context, result []byte, e stepEnd) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), afterwards)
	defer cancel()
	row, err := r.read(ctx, r.store.db)
	if err != nil {
		return nil, err
	}
	if row.State != stored.StepDone {
		cause := fmt.Errorf("it is done, but %w", ErrLeaseLost)
		r.doubled(ctx, cause)
		return nil, cause
	}
	kept, err := r.resultOf(ctx, row)
	if err != nil {
		return nil, err
	}
	one := row.Verified || e.verified || r.step.Idempotent // there was only one effect
	found := row.Verified && row.Result == nil             // by somebody who did not see its result, such as an operator
	switch alike := found || bytes.Equal(kept, result); {
	case !alike:
		r.doubled(ctx, fmt.Errorf("another result was recorded meanwhile: %w", ErrLeaseLost))
	case !one:
		r.doubled(ctx, fmt.Errorf("another process did it too: %w", ErrLeaseLost))
	}
	return kept, nil
}

// doubled reports a step that may have been done twice.
func (r *stepRun) doubled(ctx context.Context, cause error) {
	e := r.of.event(ReasonDuplicateStep)
	r.log().Error("inbox: side-effect duplicate: a step may have been done twice", cause, nil)
	e.Err = fmt.Errorf("step %q: %w", r.step.Name, cause)
	r.store.observers.tell(ctx, KindDoubleEffect, e)
}

func (r *stepRun) log() watermill.LoggerAdapter {
	return r.store.log.With(r.of.event("").fields().Add(watermill.LogFields{"step": r.step.Name}))
}
