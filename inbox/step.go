package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace-go/millrace/internal/ambient"
	"github.com/millrace-go/millrace/internal/stored"
)

// Step is something that a handler does outside of its transaction: a payment, a mail, a file.
// What it intends is recorded before it is done, and its result afterwards, each in a
// transaction of its own. A retry, a redelivery, a replay or another process that comes by
// gets the stored result, and Do is not called.
//
// It runs where no transaction is open: in a handler of middleware.Deduplicate whose Claims are
// those of a Store, or in Inbox.Before. In a handler of middleware.Inbox it only returns what is
// stored, and [ErrHoldsTx] if it was not done.
//
// Between the call and the record of its result a process can die. Then nobody knows whether the
// step was done, and with the end of Lease it is in doubt. Verify decides; or the step is
// Idempotent and is repeated with the same id; else the error is [ErrInDoubt] until an operator
// decides with admin.Admin.DecideStep.
type Step struct {
	// Name tells the steps of a message apart. Required, at most 255 bytes.
	Name string

	// Do does the step and returns what is to be remembered of it, at most MaxStepResult bytes.
	// The id is [ID] of Name: give it to the provider. Its ctx ends before the lease does. After
	// an error the step is in doubt, unless the error is marked with [NotDone]; so it is after a
	// panic, which goes on its way. Required.
	Do func(ctx context.Context, id string) (result []byte, err error)

	// Verify asks whether the step was done: the provider, by the id that Do had. After an error,
	// one marked with [NotDone] too, the step stays in doubt, and the message fails with it; marked
	// with [Terminal], it is parked where a pubsub.Durable delivers it. After a panic, which goes on
	// its way, the step stays in doubt as well.
	Verify func(ctx context.Context, id string) (done bool, result []byte, err error)

	// Idempotent says that the provider does nothing twice for one id, so that Do is repeated
	// where nobody knows, and there is no Verify.
	Idempotent bool

	// Lease bounds Do and Verify together, and is how long a step of a process that died stays
	// taken. Defaults to 1 minute. At least 100ms.
	Lease time.Duration

	// Wait bounds how long a step waits for another process that is at it; then it fails with
	// [ErrInProgress]. Defaults to 5 seconds.
	Wait time.Duration

	// Store is where the step is recorded. Defaults to that of the middleware; required where
	// the Claims of middleware.Deduplicate are those of no Store.
	Store *Store
}

// Once is [Step.Run] of a step that is neither verified nor idempotent.
func Once(ctx context.Context, name string, do func(ctx context.Context, id string) ([]byte, error)) ([]byte, error) {
	return Step{Name: name, Do: do}.Run(ctx)
}

// NotDone marks an error of Do as one after which the step is certainly not done, such as a
// refusal: it is done again with the next attempt at the message, whoever makes it. nil stays nil.
func NotDone(err error) error {
	if err == nil {
		return nil
	}
	return &notDoneError{err}
}

type notDoneError struct{ error }

func (e *notDoneError) Unwrap() error { return e.error }

func (s *Step) setDefaults() {
	if s.Lease == 0 {
		s.Lease = time.Minute
	}
	if s.Wait == 0 {
		s.Wait = 5 * time.Second
	}
}

// validate returns every problem of s at once.
func (s *Step) validate() error {
	var problems []error
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if s.Name == "" || len(s.Name) > maxName {
		problem("Name has %d bytes, not 1 to %d", len(s.Name), maxName)
	}
	if s.Do == nil {
		problem("Do is required")
	}
	if s.Lease < minLease {
		problem("Lease %v is below %v", s.Lease, minLease)
	}
	if s.Wait < 0 {
		problem("Wait %v is negative", s.Wait)
	}
	if s.Store == nil {
		problem("there is no Store: give middleware.Deduplicate the Claims of one, Store.Leases(), or set Step.Store")
	}
	return errors.Join(problems...)
}

// Run returns the result of the step, after doing it if it was not done for the message that
// ctx belongs to. It returns [ErrNoMessage] where there is none, and no result and no error where
// the step was not done and the effects of a replayed message are suppressed; [IsReplay] tells.
func (s Step) Run(ctx context.Context) ([]byte, error) {
	of, err := subjectOf(ctx)
	if err != nil {
		return nil, err
	}
	s.setDefaults()
	if s.Store == nil {
		s.Store = of.store
	}
	if err := s.validate(); err != nil {
		return nil, fmt.Errorf("inbox: step %.300q: %w", s.Name, err)
	}
	of.store, of.namespace = s.Store, s.Store.config.Namespace
	r := &stepRun{step: &s, store: s.Store, of: of, id: of.uuid([]string{s.Name})}
	err = r.formerly(ctx)
	var result []byte
	if err == nil {
		result, err = r.run(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("inbox: step %q: %w", s.Name, err)
	}
	return result, nil
}

// run returns the stored result, or does the step.
func (r *stepRun) run(ctx context.Context) ([]byte, error) {
	open := r.of.inTx || ambient.From(ctx).Open()
	if open || ambient.Suppresses(ctx, 0) {
		row, err := r.read(ctx, r.store.db.Reader(ctx))
		switch {
		case err != nil:
			return nil, err
		case row.State == stored.StepDone && !open:
			return r.kept(ctx, row)
		case row.State == stored.StepDone:
			return r.resultOf(ctx, row)
		case ambient.Suppresses(ctx, 1):
			return nil, nil
		}
		return nil, ErrHoldsTx
	}
	row, err := r.obtain(ctx)
	if err != nil {
		return nil, err
	}
	if row.State == stored.StepDone {
		return r.kept(ctx, row)
	}
	return r.work(ctx, row.doubtful)
}
