package inbox

import "fmt"

// Kind is what an [Event] is about. Later releases may add kinds: an observer ignores those that it does not know.
type Kind uint8

// The kinds of events. Where one says so, Event.Reason tells more.
const (
	// KindReceived is each delivery that a consumer takes up, before it knows whether the message was handled.
	KindReceived Kind = iota + 1

	// KindCompleted is each handler run whose transaction was committed.
	KindCompleted

	// KindFailed is each handler run that was rolled back, and why; and, with [ReasonCollision] and no Duration, each
	// message that [CollisionFail] refuses.
	KindFailed

	// KindRetried is each stored message that is to be tried again, why, and after how many attempts.
	KindRetried

	// KindReclaimed counts the stored messages that were taken over from somebody whose lease lapsed: a process ended,
	// or froze.
	KindReclaimed

	// KindDuplicate is each copy that was answered without the handler; the reason says how it was known.
	KindDuplicate

	// KindCollision is each message with the key but not the payload of another.
	KindCollision

	// KindParked is each message stored for an operator, parked or failed terminally, and why.
	KindParked

	// KindStale is each message whose version its aggregate is past.
	KindStale

	// KindGap is each arrival of a message before its predecessor was applied, with [GapLatest] too.
	KindGap

	// KindHeld is each message stored until its predecessor is applied.
	KindHeld

	// KindReleased counts the messages that were released by one that was applied.
	KindReleased

	// KindForgottenTx is each success that made no use of its transaction.
	KindForgottenTx

	// KindEndedTx is each handler that ended the transaction itself.
	KindEndedTx

	// KindDoubleEffect is each handler run that succeeded although its key could not be confirmed: a copy of the message
	// may have been handled as well, or will be. It is also each [Step] that may have been done twice, with
	// [ReasonDuplicateStep].
	KindDoubleEffect

	// KindSettled is each message whose produced messages are known to be with the broker.
	KindSettled

	// KindContention is each deadlock or lock wait that was retried unseen.
	KindContention

	// KindOutage is each delivery that found the database, or the store of the leases, down.
	KindOutage

	// KindReplayed is what became of each replayed message: "ran", "refused", "duplicate", "ran although refused" where
	// [ReplayRefuse] holds and an operator wanted it, "queued" where it had failed before and is tried again by its
	// queue, or "suppressed" with the Count of messages that were not sent and steps that were not done; or "stale
	// version", "held" or "parked", of which there is another event as well. A run that failed comes again.
	KindReplayed

	// KindEvicted counts the confirmed keys that a store of leases, such as lease.Memory, forgot before their retention was over. A panic frees
	// the key that was to be taken, and goes on its way.
	KindEvicted

	// KindPurged is each run of the janitor: how many claims it deleted, and what failed.
	KindPurged

	// KindClaims tells, when the janitor has walked all completed claims of a consumer, how many of them are how old:
	// one event for each age. A consumer that keeps for ever is not walked.
	KindClaims
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
}

// String returns what the kind is called, such as "completed" or "double effect".
func (k Kind) String() string {
	if k == 0 || int(k) >= len(kindNames) {
		return fmt.Sprintf("Kind(%d)", uint8(k))
	}
	return kindNames[k]
}
