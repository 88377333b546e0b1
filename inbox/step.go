package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace-go/millrace/internal/ambient"
	"github.com/millrace-go/millrace/internal/stored"
)

// Step is an effect that a handler has outside its transaction: a payment, an e-mail, a file.
// [Step.Run] records the intent before it calls Do, and the result afterwards, each in a
// transaction of its own. A retry, a redelivery, a replay or another process then gets the
// stored result, and Do is not called. The steps of a message go by [ID], which middleware.Inbox and
// middleware.Deduplicate share if their consumers have one name.
//
// A step runs only where no transaction is open: in a handler of middleware.Deduplicate whose
// Claims are those of a Store, or in Inbox.Before. In a handler of middleware.Inbox, Run returns
// the stored result, or [ErrHoldsTx] if the step was not done.
//
// A process can die between the call and the record of its result. Then nobody knows whether the
// step was done, and once Lease ends, the step is in doubt. Verify decides; or, if the step is
// Idempotent, Do is repeated with the same id; else Run returns [ErrInDoubt] until an operator
// decides with admin.Admin.DecideStep.
type Step struct {
	// Name distinguishes the steps of a message. Required, at most 255 bytes.
	Name string

	// Do performs the step and returns its result, at most MaxStepResult bytes. The id is [ID] of
	// Name: give it to the provider. The ctx ends before the lease does. After an error the step is
	// in doubt, unless the error is marked with [NotDone]. After a panic, which Run passes on, the
	// step is in doubt too. Required.
	Do func(ctx context.Context, id string) (result []byte, err error)

	// Verify asks the provider, by the id that Do had, whether the step was done. If it returns an
	// error, even one marked with [NotDone], the step stays in doubt and Run returns that error; if
	// it is marked with [Terminal], a pubsub.Durable makes the message FAILED_TERMINAL. After a panic, which Run
	// passes on, the step stays in doubt too.
	Verify func(ctx context.Context, id string) (done bool, result []byte, err error)

	// Idempotent says that the provider acts only once for one id. If such a step is in doubt and
	// has no Verify, Do is repeated.
	Idempotent bool

	// Lease bounds Do and Verify together. If a process dies, its step stays taken until Lease ends.
	// Defaults to 1 minute. At least 100ms.
	Lease time.Duration

	// Wait bounds how long Run waits for another process that is running the step; then it fails
	// with [ErrInProgress]. Defaults to 5 seconds.
	Wait time.Duration

	// Store is where the step is recorded. Defaults to that of the middleware; required if the
	// Claims of middleware.Deduplicate are those of no Store.
	Store *Store
}

// Once is [Step.Run] of a step that has no Verify and is not Idempotent.
func Once(ctx context.Context, name string, do func(ctx context.Context, id string) ([]byte, error)) ([]byte, error) {
	return Step{Name: name, Do: do}.Run(ctx)
}

// NotDone marks an error of Do after which the step is certainly not done, such as a refusal. The
// next attempt at the message, in any process, calls Do again. NotDone(nil) is nil.
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
		problem("there is no Store: set Step.Store, or set the Claims of middleware.Deduplicate to Store.Leases()")
	}
	return errors.Join(problems...)
}

// Run returns the result of the step. If the step was not done yet for the message that ctx belongs
// to, Run does it. If ctx belongs to no message, Run returns [ErrNoMessage]. If the effects of a
// replayed message are suppressed, see [IsReplay], Run does no step, and returns neither a result nor
// an error for one that was not done.
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
	of.store, of.namespace, of.former = s.Store, s.Store.config.Namespace, false
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

// run returns the stored result, or does the step where that is possible.
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
