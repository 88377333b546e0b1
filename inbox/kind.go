package inbox

import "fmt"

// Kind is what an [Event] is about. Later releases may add kinds: an observer should ignore those it does not know.
type Kind uint8

// The kinds of events. Some have an Event.Reason.
const (
	// KindReceived is each delivery that a consumer begins to claim, before it knows whether the message was handled.
	KindReceived Kind = iota + 1

	// KindCompleted is each handler run whose transaction was committed.
	KindCompleted

	// KindFailed is each handler run that was rolled back, with the reason. With [ReasonCollision] and no Duration, it is
	// each message that [CollisionFail] refuses.
	KindFailed

	// KindRetried is each stored message that is to be tried again, with the reason and the attempts so far.
	KindRetried

	// KindReclaimed counts the stored messages taken over from a process whose lease lapsed: it ended or froze.
	KindReclaimed

	// KindDuplicate is each copy that was answered without the handler; the reason says how the inbox recognised it.
	KindDuplicate

	// KindCollision is each message with the key but not the payload of another.
	KindCollision

	// KindParked is each message stored for an operator, parked or failed terminally, with the reason.
	KindParked

	// KindStale is each message whose aggregate is past the version of the message.
	KindStale

	// KindGap is each arrival of a message before its predecessor was applied, with [GapLatest] too. A
	// message whose predecessor was applied while it waited in memory is none.
	KindGap

	// KindHeld is each message stored until its predecessor is applied.
	KindHeld

	// KindReleased counts the held messages that an applied message released.
	KindReleased

	// KindForgottenTx is each success of a handler that did not use its transaction.
	KindForgottenTx

	// KindEndedTx is each handler that ended the transaction itself.
	KindEndedTx

	// KindDoubleEffect is each handler run that succeeded although its key could not be confirmed: a copy of the message
	// may have been handled as well, or will be. It is also each [Step] that may have been done twice, with
	// [ReasonDuplicateStep].
	KindDoubleEffect

	// KindSettled is each message whose produced messages the broker is known to have.
	KindSettled

	// KindContention is each deadlock or lock wait that the inbox retried without an error.
	KindContention

	// KindOutage is each delivery that found the database, or the store of the leases, down.
	KindOutage

	// KindReplayed is each replayed message, unless its run failed. The reason says what the consumer did with it: "ran",
	// "refused", "duplicate"; "ran although refused" if [ReplayRefuse] is set and an operator retried it; "queued" if it
	// had failed before and its queue tries it again; "suppressed", with the Count of messages that were not sent and
	// steps that were not done; or "stale version", "held" or "parked", which have an event of their own as well.
	KindReplayed

	// KindEvicted counts the confirmed keys that a store of leases, such as lease.Memory, forgot before their retention was
	// over. If an observer panics, the key that was being claimed is free, and the panic continues.
	KindEvicted

	// KindPurged is each run of the janitor: how many claims it deleted, and what failed.
	KindPurged

	// KindClaims says how many completed claims of a consumer are how old, with one event for each age, after the janitor
	// has walked them all. It does not walk those of a consumer that keeps them for ever.
	KindClaims

	// KindBatch is each transaction of middleware.Batch for several messages, and each batch whose messages are handled
	// by themselves. Count says how many messages it had, the reason how it ended: [ReasonCommitted], [ReasonHalved],
	// [ReasonNamed] or [ReasonAlone]. The first event of a batch has as its Duration how long its first message waited
	// for others and for the last batch. A panic of the observer is logged, and counted by [Store.Panics].
	KindBatch
)

var kindNames = [...]string{
	KindReceived:     "received",
	KindCompleted:    "completed",
	KindFailed:       "failed",
	KindRetried:      "retried",
	KindReclaimed:    "reclaimed",
	KindDuplicate:    "duplicate",
	KindCollision:    "collision",
	KindParked:       "parked",
	KindStale:        "stale",
	KindGap:          "gap",
	KindHeld:         "held",
	KindReleased:     "released",
	KindForgottenTx:  "forgotten tx",
	KindEndedTx:      "ended tx",
	KindDoubleEffect: "double effect",
	KindSettled:      "settled",
	KindContention:   "contention",
	KindOutage:       "outage",
	KindReplayed:     "replayed",
	KindEvicted:      "evicted",
	KindPurged:       "purged",
	KindClaims:       "claims",
	KindBatch:        "batch",
}

// String returns the name of the kind, such as "completed" or "double effect".
func (k Kind) String() string {
	if k == 0 || int(k) >= len(kindNames) {
		return fmt.Sprintf("Kind(%d)", uint8(k))
	}
	return kindNames[k]
}
