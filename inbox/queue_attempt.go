package inbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/millrace-go/millrace/internal/original"
	"github.com/millrace-go/millrace/internal/stored"
)

// attempt collects what a queue must know about one delivery to answer it.
type attempt struct {
	number     int
	receivedAt time.Time
	queue      *Queue
	leased     *Leased           // the stored message; nil for a delivery past the table
	came       *original.Message // as the source delivered it; nil for a stored message

	// keep stores a message without a key; nil for a stored message.
	keep func(ctx context.Context, because why) (stored bool, err error)

	mu        sync.Mutex
	over      bool       // the inbox answered it in the handler's transaction
	seen      bool       // it reached the inbox
	tried     bool       // the handler ran
	cancelled bool       // the delivery was cancelled, and the handler failed because of that
	cause     error      // why the handler failed or did not run
	ran       *failedRun // if it failed
}

type attemptKey struct{}

// deliveredBy returns the attempt that ctx belongs to, nil if no queue delivers the message.
func deliveredBy(ctx context.Context) *attempt {
	a, _ := ctx.Value(attemptKey{}).(*attempt)
	return a
}

// leasedOf returns the stored message that ctx belongs to, nil if no queue delivers it from its table.
func leasedOf(ctx context.Context) *Leased {
	if a := deliveredBy(ctx); a != nil {
		return a.leased
	}
	return nil
}

// undelivered returns ctx without its attempt, which is that of another message: ctx came from the handler that published
// this one.
func undelivered(ctx context.Context) context.Context {
	return context.WithValue(ctx, attemptKey{}, nil)
}

// Attempt returns the number of the attempt that a handler's context belongs to: 1 for the first,
// and 0 if no pubsub.Durable delivers the message.
func Attempt(ctx context.Context) int {
	if a := deliveredBy(ctx); a != nil {
		return a.number
	}
	return 0
}

// ReceivedAt returns when the message of a handler's context arrived. For a stored message that is
// when it was stored, by the database's clock. It is zero if no pubsub.Durable delivers the
// message.
func ReceivedAt(ctx context.Context) time.Time {
	if a := deliveredBy(ctx); a != nil {
		return a.receivedAt
	}
	return time.Time{}
}

// otherQueue is the error for a message that a queue delivers to another consumer than its own.
func otherQueue(q *Queue) error {
	return fmt.Errorf("the message comes from the pubsub.Durable of consumer %q, epoch %d, and each handler needs one of its own",
		q.name.Name, q.name.Epoch)
}

// done notes that the inbox answered the delivery in the handler's transaction.
func (a *attempt) done() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = true
}

// failed notes why the handler failed. A cancellation excuses it only if the delivery itself was
// cancelled: a handler may have cancelled a call of its own.
func (a *attempt) failed(delivery context.Context, cause error, ran *failedRun) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen, a.tried, a.cause, a.ran = true, true, cause, ran
	a.cancelled = delivery.Err() != nil && errors.Is(cause, context.Canceled)
}

// interrupted notes why the handler did not run, or why its run is no attempt. That the message was nacked says less
// than why an earlier run failed.
func (a *attempt) interrupted(cause error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.cause != nil && errors.Is(cause, errNackedBefore) {
		return
	}
	a.seen, a.cause = true, cause
}

// succeeded notes that the inbox handled the message, or found it handled, whatever became of earlier
// tries in this delivery.
func (a *attempt) succeeded() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen, a.tried, a.cancelled, a.cause, a.ran = true, true, false, nil, nil
}

// reached reports whether the message came to the inbox.
func (a *attempt) reached() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.seen || a.over
}

// result returns whether the inbox answered the delivery, whether the delivery counts as an
// attempt, and why it failed, if that is known. A delivery does not count if it was cancelled,
// because the service closes for instance, or if the inbox did not run the handler.
func (a *attempt) result() (over, counts bool, cause error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	counts = (a.tried || !a.seen) && !a.cancelled
	return a.over, counts, a.cause
}

// failedRun returns the run that failed, of which little is known if the message did not reach the inbox.
func (a *attempt) failedRun() *failedRun {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ran == nil {
		return &failedRun{}
	}
	return a.ran
}

// RetryAfter marks err so that the queue tries the message again after delay instead of its own
// backoff. It is an attempt like any other, up to MaxAttempts. nil stays nil.
func RetryAfter(err error, delay time.Duration) error {
	if err == nil {
		return nil
	}
	return &retryError{error: err, after: max(delay, 0)}
}

type retryError struct {
	error
	after time.Duration
}

func (e *retryError) Unwrap() error { return e.error }

// errDisconnected marks the error of a run that lost its own connection to the database. It is an [ErrUnavailable].
var errDisconnected error = disconnection{}

type disconnection struct{}

func (disconnection) Error() string { return "the connection to the database was lost" }

func (disconnection) Unwrap() error { return ErrUnavailable }

func disconnected(cause error) error { return fmt.Errorf("%w: %w", errDisconnected, cause) }

// free reports whether the failure does not count as an attempt. A lost connection is hardly the
// message's fault, unless the same message loses one twice in a row.
func free(cause error, last lastError) bool {
	return errors.Is(cause, errDisconnected) && last.code != stored.ErrorConnection
}

// fate is the next state of a stored message after a failure.
type fate struct {
	status   stored.Status
	attempts int
	delay    time.Duration
	why
	last lastError
}

// fateOf returns the fate of a message that had this many attempts before the delivery that failed
// now.
func (q *Queue) fateOf(attempts int, counts bool, cause error, last lastError) fate {
	config := &q.config
	if counts && free(cause, last) {
		return fate{stored.FailedRetryable, attempts, config.MinBackoff, why{ReasonConnection, "lost its connection to the database"}, lastErrorOf(cause)}
	}
	if cause != nil {
		cause = q.store.counted(q.classify(cause))
		last = lastErrorOf(cause)
	}
	unkept := isUnkept(cause)
	if !counts && unkept && !IsTerminal(cause) {
		delay := backoff(config.MinBackoff, config.MaxBackoff, int(q.store.unkept.Add(1)))
		return fate{stored.FailedRetryable, attempts, delay, why{ReasonPayload, "the payload cannot be kept now"}, last}
	}
	if !counts && !unkept { // one that Classify has ended is decided below
		return fate{stored.FailedRetryable, attempts, config.MinBackoff, why{ReasonNotTried, "was not tried"}, last}
	}
	attempts++
	var retry *retryError
	switch {
	case IsTerminal(cause):
		return fate{stored.FailedTerminal, attempts, stored.Never, why{terminalReason(cause), "no other attempt would end differently"}, last}
	case attempts >= config.MaxAttempts:
		return fate{stored.Parked, attempts, stored.Never, why{ReasonAttempts, fmt.Sprintf("failed %d times", attempts)}, last}
	case errors.As(cause, &retry):
		return fate{stored.FailedRetryable, attempts, retry.after, why{ReasonRetryAfter, "to be tried again when the handler said"}, last}
	}
	delay := backoff(config.MinBackoff, config.MaxBackoff, attempts)
	return fate{stored.FailedRetryable, attempts, delay, why{reasonOf(cause), "to be tried again"}, last}
}

// classify marks the error of a handler. What the service's Classify marks takes precedence. A stray has met no handler.
func (q *Queue) classify(cause error) error {
	if errors.Is(cause, errStray) {
		return cause
	}
	cause = callClassify(q.config.Classify, cause)
	var retry *retryError
	if errors.As(cause, &retry) {
		return cause
	}
	return foreseen(cause)
}

// backoff returns a random pause whose bound doubles with each attempt, up to most.
func backoff(least, most time.Duration, attempts int) time.Duration {
	longest := least
	for range attempts - 1 {
		if longest = 2 * longest; longest >= most {
			longest = most
			break
		}
	}
	return rand.N(longest) + 1 //nolint:gosec // jitter needs no secrecy
}
