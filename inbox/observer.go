package inbox

import (
	"context"
	"time"
)

// Event is what an observer is told. Fields that do not apply are empty.
type Event struct {
	Consumer  string
	Epoch     int
	MessageID string // the key, readable
	UUID      string
	Topic     string
	Type      string // event type
	Reason    string
	Duration  time.Duration
	Count     int
	Err       error
}

// Observer is told of decisions, for metrics and traces. A value in [Config.Observers]
// implements one or more of the interfaces of one method below. They are called in the
// delivery's goroutine and must be quick.
type Observer any

type (
	// CompletedObserver is told of each handler run whose transaction was committed.
	CompletedObserver interface {
		ObserveCompleted(ctx context.Context, e Event)
	}
	// FailedObserver is told of each handler run that was rolled back.
	FailedObserver interface {
		ObserveFailed(ctx context.Context, e Event)
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
	// ParkedObserver is told of each message stored for an operator.
	ParkedObserver interface {
		ObserveParked(ctx context.Context, e Event)
	}
	// StaleObserver is told of each message whose version its aggregate is past.
	StaleObserver interface {
		ObserveStale(ctx context.Context, e Event)
	}
	// GapObserver is told each time a message arrives before its predecessor was applied.
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
	// PurgedObserver is told of each run of the janitor.
	PurgedObserver interface {
		ObservePurged(ctx context.Context, e Event)
	}
)

// observers holds each kind in a slice of its own: no event costs a type assertion.
type observers struct {
	completed   []CompletedObserver
	failed      []FailedObserver
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
	purged      []PurgedObserver
}

func newObservers(all []Observer) observers {
	return observers{
		completed:   only[CompletedObserver](all),
		failed:      only[FailedObserver](all),
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
		purged:      only[PurgedObserver](all),
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

func (s *Store) observeContention(d *delivery, err error) {
	if len(s.observe.contention) == 0 {
		return
	}
	e := d.event("retried")
	e.Err = err
	for _, o := range s.observe.contention {
		o.ObserveContention(d.ctx, e)
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

func (s *Store) observeGap(d *delivery, gap *GapError) {
	if len(s.observe.gap) == 0 {
		return
	}
	e := d.event(gap.Error())
	e.Err = gap
	for _, o := range s.observe.gap {
		o.ObserveGap(d.ctx, e)
	}
}
