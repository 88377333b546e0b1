package inbox

import (
	"context"
	"errors"

	"github.com/millrace-go/millrace/internal/dialect"
)

// The values of [Event.Reason], by the [Kind] of the event.
const (
	// Why a run failed: [KindFailed] and [KindRetried].

	ReasonError       = "handler error"
	ReasonPanic       = "panic"
	ReasonTimeout     = "timeout"
	ReasonTerminal    = "terminal"     // marked by Terminal: no other attempt would end differently
	ReasonUnknownType = "unknown type" // terminal, because no handler knows the event type
	ReasonConnection  = "connection lost"
	ReasonContention  = "contention" // a deadlock or a serialization failure
	ReasonClosing     = "closing"    // the service closes, or the delivery was cancelled
	ReasonTxEnded     = "transaction ended"
	ReasonTxNotUsed   = "transaction not used" // although RequireTx is set
	ReasonHidden      = "error hidden"         // by a middleware in between, or by the handler
	ReasonLost        = "lost"                 // someone else changed the message, or has the lease
	ReasonUnpublished = "not published"        // what the handler returned
	ReasonNacked      = "nacked"               // and nobody said why
	ReasonNotTried    = "not tried"            // put back without an attempt
	ReasonRetryAfter  = "retry after"          // at a time of the handler's choice
	ReasonPayload     = "payload"              // it cannot be opened

	// Why a message is parked, or why it is failed terminally: [KindParked]. So are
	// [ReasonTerminal], [ReasonUnknownType] and [ReasonPayload].

	ReasonCollision   = "collision" // it has the key, but not the payload, of another one
	ReasonTooOld      = "too old"   // it may have been handled and forgotten
	ReasonAttempts    = "attempts"  // it failed too often
	ReasonNoAnswer    = "no answer" // it was with a process that gave none, too often
	ReasonVersion     = "version"   // the version gate cannot place it
	ReasonGap         = "gap"       // its predecessor did not come, and nothing holds messages
	ReasonTooManyHeld = "too many held"
	ReasonHeldTooLong = "held too long"
	ReasonReplayed    = "replayed" // and the consumer refuses that
	ReasonNoKey       = "no key"   // it has none, or what it is compared or ordered by cannot be found

	// How a copy was known: [KindDuplicate]. A copy of an open message has "stored as " and the
	// name of its state.

	ReasonSettled          = "settled"   // from memory
	ReasonCompleted        = "completed" // from its claim
	ReasonConfirmed        = "confirmed" // from its lease
	ReasonWaited           = "handled while this copy waited"
	ReasonOutcome          = "outcome not known to be published" // and is given to the router again
	ReasonCollisionDropped = "collision dropped"

	// What may have happened twice: [KindDoubleEffect].

	ReasonNotConfirmed  = "not confirmed"         // a run of a handler
	ReasonDuplicateStep = "side-effect duplicate" // a step

	// How old claims are: [KindClaims].

	ReasonHour  = "1h" // at most
	ReasonDay   = "1d" // at most, and above an hour
	ReasonWeek  = "7d" // at most, and above a day
	ReasonOlder = "older"
)

// What does not answer, in [Event.Reason] of [KindOutage].
const (
	databaseDown = "database down"
	leasesDown   = "store of leases down"
)

// why is a reason of the set above, and the words for a person.
type why struct{ reason, text string }

// eventOf tells of w.
func (d *delivery) eventOf(w why) Event {
	e := d.event(w.reason)
	e.Err = errors.New(w.text)
	return e
}

// terminalReason is why a message failed terminally with err.
func terminalReason(err error) string {
	if errors.Is(err, ErrUnknownType) {
		return ReasonUnknownType
	}
	return ReasonTerminal
}

// reasonOf is why a run failed with err.
func reasonOf(err error) string {
	for _, known := range []struct {
		err    error
		reason string
	}{
		{errPanic, ReasonPanic},
		{ErrTxEndedByHandler, ReasonTxEnded},
		{ErrTxNotUsed, ReasonTxNotUsed},
		{ErrSwallowed, ReasonHidden},
		{dialect.ErrHidden, ReasonHidden},
		{ErrUnknownType, ReasonUnknownType},
		{errUnpublished, ReasonUnpublished},
		{errDisconnected, ReasonConnection},
		{context.DeadlineExceeded, ReasonTimeout},
		{context.Canceled, ReasonClosing},
		{ErrCollision, ReasonCollision},
		{ErrLost, ReasonLost},
		{ErrLeaseLost, ReasonLost},
	} {
		if errors.Is(err, known.err) {
			return known.reason
		}
	}
	var retry *retryError
	switch kind := dialect.Classify(err); {
	case err == nil:
		return ReasonNacked
	case IsTerminal(err):
		return ReasonTerminal
	case errors.As(err, &retry):
		return ReasonRetryAfter
	case kind == dialect.Contention:
		return ReasonContention
	case kind == dialect.Unavailable:
		return ReasonConnection
	}
	return ReasonError
}
