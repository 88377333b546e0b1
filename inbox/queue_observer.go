package inbox

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/msgcode"
	"github.com/millrace-go/millrace/internal/stored"
)

// event returns an event about a message that arrived.
func (q *Queue) event(a *arrival, reason string) Event {
	kind, _ := q.describe(a.msg)
	return Event{
		Consumer: q.name.Name, Epoch: q.name.Epoch, MessageID: keycode.String(a.id), UUID: a.msg.UUID, Topic: a.topic,
		Type: kind, Reason: reason, Attempt: a.attempts, Metadata: a.msg.Metadata, Replay: a.msg.Metadata[ReplayField],
	}
}

// event returns an event about the fate of a stored message.
func (l *Leased) event(became fate) Event {
	metadata, err := msgcode.DecodeMetadata(l.row.Metadata)
	if err != nil {
		metadata = nil // it cannot be read
	}
	return Event{
		Consumer: l.queue.name.Name, Epoch: l.queue.name.Epoch, MessageID: keycode.String(l.row.MessageID),
		UUID: string(l.row.UUID), Topic: string(l.row.Topic), Type: string(l.row.EventType),
		Reason: became.reason, Attempt: became.attempts, Metadata: metadata, Replay: metadata[ReplayField],
	}
}

func (q *Queue) observeCollision(ctx context.Context, a *arrival) {
	e := q.event(a, ReasonCollision)
	e.MessageID = a.key
	q.tellCollision(ctx, e)
	q.observeFate(ctx, q.event(a, a.reason), fate{status: stored.Parked, why: a.why})
}

// observeOutage reports a message that cannot be stored if the reason is that the database is down.
func (q *Queue) observeOutage(ctx context.Context, a *arrival, err error) {
	if !saysOf(err).Down() {
		return
	}
	e := q.event(a, databaseDown)
	e.Err = err
	q.Call(func() { q.store.observers.tell(ctx, KindOutage, e) })
}

// observeContention reports that messages are stored one by one after a conflict with another
// writer.
func (q *Queue) observeContention(ctx context.Context, err error) {
	e := Event{Consumer: q.name.Name, Epoch: q.name.Epoch, Reason: "retried", Err: err}
	q.Call(func() { q.store.tellContention(ctx, e) })
}

// observeFate reports the fate of a message that failed.
func (q *Queue) observeFate(ctx context.Context, e Event, f fate) {
	e.Attempt, e.Err = f.attempts, f.err()
	switch {
	case f.status.Stuck():
		q.Call(func() { q.store.observeParked(ctx, e) })
	case f.status == stored.FailedRetryable:
		q.Call(func() { q.store.observeRetried(ctx, e, f.delay) })
	}
}

// err returns the error that observers get for a message that failed.
func (f fate) err() error {
	if len(f.last.text) > 0 {
		return errors.New(f.text + ": " + string(f.last.text))
	}
	return errors.New(f.text)
}

// observeRetried reports a stored message that its queue tries again after delay.
func (s *Store) observeRetried(ctx context.Context, e Event, delay time.Duration) {
	s.observers.tell(ctx, KindRetried, e)
	if s.debug.Load() {
		s.log.Debug("inbox: a stored message is tried again later",
			e.fields().Add(watermill.LogFields{"again_in": delay.String()}))
	}
}

// observeReclaimed reports messages that were taken over because their leases had lapsed.
func (q *Queue) observeReclaimed(ctx context.Context, leased []*Leased) {
	e := Event{Consumer: q.name.Name, Epoch: q.name.Epoch, Reason: "lease lapsed"}
	for _, l := range leased {
		if l.row.LeaseToken == 0 { // nobody had it, or it was put back
			continue
		}
		e.Count++
		if l.suspect { // it is leased alone
			one := l.event(fate{attempts: l.number, why: why{reason: e.Reason}})
			one.Count = e.Count
			e = one
			q.store.log.Info("inbox: a stored message was taken back from a process that did not answer in time", e.fields())
		}
	}
	if e.Count == 0 {
		return
	}
	e.Kind = KindReclaimed
	for _, o := range q.store.observers[e.Kind] {
		q.Call(func() { o.Observe(ctx, e) })
	}
}
