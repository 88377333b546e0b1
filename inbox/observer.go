package inbox

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Event is what an observer is told. Fields that do not apply are empty.
type Event struct {
	Consumer  string
	Epoch     int
	MessageID string // the key, readable
	UUID      string
	Topic     string
	Type      string // event type
	Reason    string // one of a small set, so that it can be counted by; details are in Err
	Duration  time.Duration
	Count     int
	Attempt   int // at a stored message, 1 for the first; 0 where no pubsub.Durable delivers
	Err       error
	Metadata  message.Metadata // of the message, where it is at hand; not to be changed
	Replay    string           // what a replayed message says of its replay
}

// Observer is told of decisions, for metrics and traces. A value in [Config.Observers]
// implements one or more of the interfaces of one method below. They are called in the
// delivery's goroutine and must be quick. A panic there goes on its way once the delivery holds
// nothing any more; in a queue, the background work and a heartbeat it is logged, and counted by
// [Store.Panics].
type Observer any

type (
	// ReceivedObserver is told of each delivery that a consumer takes up, before it knows
	// whether the message was handled.
	ReceivedObserver interface {
		ObserveReceived(ctx context.Context, e Event)
	}
	// CompletedObserver is told of each handler run whose transaction was committed.
	CompletedObserver interface {
		ObserveCompleted(ctx context.Context, e Event)
	}
	// FailedObserver is told of each handler run that was rolled back, and why; and, with [ReasonCollision] and no
	// Duration, of each message that [CollisionFail] refuses.
	FailedObserver interface {
		ObserveFailed(ctx context.Context, e Event)
	}
	// RetriedObserver is told of each stored message that is to be tried again, why, and after
	// how many attempts.
	RetriedObserver interface {
		ObserveRetried(ctx context.Context, e Event)
	}
	// ReclaimedObserver is told how many stored messages were taken over from somebody whose
	// lease lapsed: a process ended, or froze.
	ReclaimedObserver interface {
		ObserveReclaimed(ctx context.Context, e Event)
	}
	// DuplicateObserver is told of each copy that was answered without the handler; the
	// reason says how it was known.
	DuplicateObserver interface {
		ObserveDuplicate(ctx context.Context, e Event)
	}
	// CollisionObserver is told of each message with the key but not the payload of another.
	CollisionObserver interface {
		ObserveCollision(ctx context.Context, e Event)
	}
	// ParkedObserver is told of each message stored for an operator, parked or failed
	// terminally, and why.
	ParkedObserver interface {
		ObserveParked(ctx context.Context, e Event)
	}
	// StaleObserver is told of each message whose version its aggregate is past.
	StaleObserver interface {
		ObserveStale(ctx context.Context, e Event)
	}
	// GapObserver is told each time a message arrives before its predecessor was applied, with [GapLatest] too.
	GapObserver interface {
		ObserveGap(ctx context.Context, e Event)
	}
	// HeldObserver is told of each message stored until its predecessor is applied.
	HeldObserver interface {
		ObserveHeld(ctx context.Context, e Event)
	}
	// ReleasedObserver is told how many messages were released by one that was applied.
	ReleasedObserver interface {
		ObserveReleased(ctx context.Context, e Event)
	}
	// ForgottenTxObserver is told of each success that made no use of its transaction.
	ForgottenTxObserver interface {
		ObserveForgottenTx(ctx context.Context, e Event)
	}
	// EndedTxObserver is told of each handler that ended the transaction itself.
	EndedTxObserver interface {
		ObserveEndedTx(ctx context.Context, e Event)
	}
	// SettledObserver is told of produced messages known to be with the broker.
	SettledObserver interface {
		ObserveSettled(ctx context.Context, e Event)
	}
	// ContentionObserver is told of each deadlock or lock wait that was retried unseen.
	ContentionObserver interface {
		ObserveContention(ctx context.Context, e Event)
	}
	// OutageObserver is told of each delivery that found the database down.
	OutageObserver interface {
		ObserveOutage(ctx context.Context, e Event)
	}
	// ReplayedObserver is told what became of each replayed message: "ran", "refused", "duplicate",
	// "ran although refused" where [ReplayRefuse] holds and an operator wanted it,
	// "queued" where it had failed before and is tried again by its queue,
	// or "suppressed" with the Count of messages that were not sent and steps that were not done; or "stale version", "held" or
	// "parked", of which other observers are told as well. A run that failed comes again.
	ReplayedObserver interface {
		ObserveReplayed(ctx context.Context, e Event)
	}
	// PurgedObserver is told of each run of the janitor: how many claims it deleted, and what
	// failed.
	PurgedObserver interface {
		ObservePurged(ctx context.Context, e Event)
	}
	// ClaimsObserver is told, when the janitor has walked all completed claims of a consumer, how
	// many of them are how old: once for each age. A consumer that keeps for ever is not walked.
	ClaimsObserver interface {
		ObserveClaims(ctx context.Context, e Event)
	}
)

// observers holds each kind in a slice of its own: no event costs a type assertion.
type observers struct {
	received    []ReceivedObserver
	completed   []CompletedObserver
	failed      []FailedObserver
	retried     []RetriedObserver
	reclaimed   []ReclaimedObserver
	duplicate   []DuplicateObserver
	collision   []CollisionObserver
	parked      []ParkedObserver
	stale       []StaleObserver
	gap         []GapObserver
	held        []HeldObserver
	released    []ReleasedObserver
	forgottenTx []ForgottenTxObserver
	endedTx     []EndedTxObserver
	settled     []SettledObserver
	contention  []ContentionObserver
	outage      []OutageObserver
	replayed    []ReplayedObserver
	purged      []PurgedObserver
	doubled     []DoubleEffectObserver
	claims      []ClaimsObserver
}

func newObservers(all []Observer) observers {
	return observers{
		received:    only[ReceivedObserver](all),
		completed:   only[CompletedObserver](all),
		failed:      only[FailedObserver](all),
		retried:     only[RetriedObserver](all),
		reclaimed:   only[ReclaimedObserver](all),
		duplicate:   only[DuplicateObserver](all),
		collision:   only[CollisionObserver](all),
		parked:      only[ParkedObserver](all),
		stale:       only[StaleObserver](all),
		gap:         only[GapObserver](all),
		held:        only[HeldObserver](all),
		released:    only[ReleasedObserver](all),
		forgottenTx: only[ForgottenTxObserver](all),
		endedTx:     only[EndedTxObserver](all),
		settled:     only[SettledObserver](all),
		contention:  only[ContentionObserver](all),
		outage:      only[OutageObserver](all),
		replayed:    only[ReplayedObserver](all),
		purged:      only[PurgedObserver](all),
		doubled:     only[DoubleEffectObserver](all),
		claims:      only[ClaimsObserver](all),
	}
}

func only[T any](all []Observer) []T {
	var list []T
	for _, o := range all {
		if t, ok := o.(T); ok {
			list = append(list, t)
		}
	}
	return list
}

func (s *Store) observeReceived(d *delivery) {
	if len(s.observe.received) == 0 {
		return
	}
	e := d.event("received")
	for _, o := range s.observe.received {
		o.ObserveReceived(d.ctx, e)
	}
}

func (s *Store) observeContention(d *delivery, err error) {
	if len(s.observe.contention) == 0 && !s.debug.Load() {
		return
	}
	e := d.event("retried")
	e.Err = err
	s.tellContention(d.ctx, e)
}

func (s *Store) tellContention(ctx context.Context, e Event) {
	for _, o := range s.observe.contention {
		o.ObserveContention(ctx, e)
	}
	if s.debug.Load() {
		s.log.Debug("inbox: deadlock or lock wait, tried again", e.fields())
	}
}

func (s *Store) observeOutage(d *delivery, err error) {
	if len(s.observe.outage) == 0 {
		return
	}
	e := d.event("database down")
	e.Err = err
	for _, o := range s.observe.outage {
		o.ObserveOutage(d.ctx, e)
	}
}

func (s *Store) observeGap(d *delivery, gap error) {
	if len(s.observe.gap) == 0 && !s.debug.Load() {
		return
	}
	e := d.event(ReasonGap)
	e.Err = gap
	for _, o := range s.observe.gap {
		o.ObserveGap(d.ctx, e)
	}
	if s.debug.Load() {
		s.log.Debug("inbox: a message came before its predecessor", e.fields())
	}
}
