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
	ReasonTerminal    = "terminal"     // marked by Terminal: every other attempt would fail too
	ReasonUnknownType = "unknown type" // terminal, because no handler knows the event type
	ReasonConnection  = "connection lost"
	ReasonContention  = "contention" // a deadlock or a serialization failure
	ReasonClosing     = "closing"    // the service closes, or the delivery was cancelled
	ReasonTxEnded     = "transaction ended"
	ReasonTxNotUsed   = "transaction not used" // although RequireTx is set
	ReasonHidden      = "error hidden"         // by a middleware in between, or by the handler
	ReasonLost        = "lost"                 // another process changed the message, or has the lease
	ReasonUnpublished = "not published"        // the messages that the handler returned
	ReasonNacked      = "nacked"               // by the handler, or without a known cause
	ReasonNotTried    = "not tried"            // put back without an attempt
	ReasonRetryAfter  = "retry after"          // at a time of the handler's choice
	ReasonPayload     = "payload"              // it cannot be opened, or kept

	// Why a message is parked or failed terminally: [KindParked]. [ReasonTerminal], [ReasonUnknownType]
	// and [ReasonPayload] are such reasons too.

	ReasonCollision   = "collision" // it has the key, but not the payload, of another one
	ReasonTooOld      = "too old"   // it may have been handled and forgotten
	ReasonAttempts    = "attempts"  // it failed too often
	ReasonNoAnswer    = "no answer" // too often, a process took it and neither acked nor nacked it
	ReasonVersion     = "version"   // the version gate cannot place it
	ReasonGap         = "gap"       // its predecessor is missing, and nothing holds messages
	ReasonTooManyHeld = "too many held"
	ReasonHeldTooLong = "held too long"
	ReasonReplayed    = "replayed" // and the consumer refuses replays
	ReasonNoKey       = "no key"   // it has no usable key, fingerprint or order key

	// How the inbox recognised a copy: [KindDuplicate]. The reason of a copy of an open message is
	// "stored as " and the name of its state.

	ReasonSettled          = "settled"   // from memory
	ReasonCompleted        = "completed" // from its claim
	ReasonConfirmed        = "confirmed" // from its lease
	ReasonWaited           = "handled while this copy waited"
	ReasonOutcome          = "outcome not known to be published" // so the router gets it again
	ReasonCollisionDropped = "collision dropped"

	// What may have happened twice: [KindDoubleEffect].

	ReasonNotConfirmed  = "not confirmed"         // a run of a handler
	ReasonDuplicateStep = "side-effect duplicate" // a step

	// How old claims are: [KindClaims].

	ReasonHour  = "1h" // at most
	ReasonDay   = "1d" // at most, and above an hour
	ReasonWeek  = "7d" // at most, and above a day
	ReasonOlder = "older"

	// How a batch ended: [KindBatch].

	ReasonCommitted = "committed"
	ReasonHalved    = "halved" // it failed, and its halves are tried
	ReasonNamed     = "named"  // messages that failed were named, and the others are tried again
	ReasonAlone     = "alone"  // each of its messages is handled by itself
)

// The reasons of [KindOutage].
const (
	databaseDown = "database down"
	leasesDown   = "store of leases down"
)

// why is one of the reasons above, and a text for a person.
type why struct{ reason, text string }

// eventOf returns an event with the reason w.
func (d *delivery) eventOf(w why) Event {
	e := d.event(w.reason)
	e.Err = errors.New(w.text)
	return e
}

// terminalReason returns the reason of a message that failed terminally with err.
func terminalReason(err error) string {
	if errors.Is(err, ErrUnknownType) {
		return ReasonUnknownType
	}
	return ReasonTerminal
}

// reasonOf returns the reason of a run that failed with err.
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
		{errNacked, ReasonNacked},
		{errDisconnected, ReasonConnection},
		{errNotKept, ReasonPayload},
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
