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

// attempt is what a queue wants to know of one delivery.
type attempt struct {
	number     int
	receivedAt time.Time
	queue      *Queue
	came       *original.Message // as the queue was given it; nil where it is stored

	keep func(ctx context.Context, because why) (stored bool, err error) // of a message without a key; nil where it is stored

	mu        sync.Mutex
	over      bool  // the inbox ended it, in the handler's transaction
	seen      bool  // the inbox had it
	tried     bool  // the handler ran
	cancelled bool  // the delivery, before the handler failed
	cause     error // why the handler failed, or did not run
}

type attemptKey struct{}

// deliveredBy returns the attempt that ctx belongs to, nil if no queue delivers.
func deliveredBy(ctx context.Context) *attempt {
	if l := leasedOf(ctx); l != nil {
		return &l.attempt
	}
	return attemptOf(ctx)
}

// Attempt returns which attempt at its message the context of a handler belongs to: 1 for
// the first. It is 0 where no pubsub.Durable delivers.
func Attempt(ctx context.Context) int {
	if a := deliveredBy(ctx); a != nil {
		return a.number
	}
	return 0
}

// ReceivedAt returns when the message arrived whose handler ctx belongs to: for one that was
// stored, when that was, by the database's clock. It is zero where no pubsub.Durable delivers.
func ReceivedAt(ctx context.Context) time.Time {
	if a := deliveredBy(ctx); a != nil {
		return a.receivedAt
	}
	return time.Time{}
}

// attemptOf returns the attempt that a queue wants to know of, nil if none does.
func attemptOf(ctx context.Context) *attempt {
	a, _ := ctx.Value(attemptKey{}).(*attempt)
	return a
}

// done says that the delivery was ended in the transaction of the handler.
func (a *attempt) done() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = true
}

// failed says why the handler of a delivery failed. Only one that was cancelled itself is
// excused: a handler may have cancelled a call of its own.
func (a *attempt) failed(delivery context.Context, cause error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen, a.tried, a.cause = true, true, cause
	a.cancelled = delivery.Err() != nil && errors.Is(cause, context.Canceled)
}

// interrupted says why the handler did not run.
func (a *attempt) interrupted(cause error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen, a.cause = true, cause
}

// result says whether the inbox ended the delivery; whether it counts as an attempt, which
// one that was cancelled, because the service closes, or that never reached the handler
// does not; and why it failed, if anyone told.
func (a *attempt) result() (over, counts bool, cause error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	counts = (a.tried || !a.seen) && !a.cancelled
	return a.over, counts, a.cause
}

// RetryAfter marks err as one after which the message is to be tried again at a time of
// the handler's choice. nil stays nil.
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

// errDisconnected is what becomes of a run whose own connection to the database was lost.
var errDisconnected = errors.New("the connection to the database was lost")

// disconnected marks the error of such a run.
func disconnected(cause error) error { return fmt.Errorf("%w: %w", errDisconnected, cause) }

// free reports whether the failure is not counted: a connection was lost, which is hardly
// the message's fault unless it happens to the same one again.
func free(cause error, last lastError) bool {
	return errors.Is(cause, errDisconnected) && last.code != stored.ErrorConnection
}

// fate is what becomes of a message that failed.
type fate struct {
	status   stored.Status
	attempts int
	delay    time.Duration
	why
	last lastError
}

// fateOf decides what becomes of a message after so many attempts, the last of which failed.
func (q *Queue) fateOf(attempts int, counts bool, cause error, last lastError) fate {
	config := &q.config
	if counts && free(cause, last) {
		return fate{stored.FailedRetryable, attempts, config.MinBackoff, why{ReasonConnection, "lost its connection to the database"}, lastErrorOf(cause)}
	}
	if cause != nil {
		cause = q.store.counted(q.classify(cause))
		last = lastErrorOf(cause)
	}
	if !counts {
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

// classify marks the error of a handler. The service has the first word.
func (q *Queue) classify(cause error) error {
	cause = callClassify(q.config.Classify, cause)
	var retry *retryError
	if errors.As(cause, &retry) {
		return cause
	}
	return foreseen(cause)
}

// backoff is longer with each attempt, and never twice the same.
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
