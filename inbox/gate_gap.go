package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/stored"
)

// A GapError says that the predecessor of a message was not applied. The message was not handled
// and goes back to its source.
type GapError struct {
	Aggregate string
	Version   int64 // of the message
	Current   int64 // of the aggregate
}

func (e *GapError) Error() string {
	return fmt.Sprintf("version gate: version %d of aggregate %q waits for version %d, which was not applied",
		e.Version, e.Aggregate, e.Current+1)
}

// gap decides about a message whose predecessor was not applied.
func (cl *claim) gap(g *gate, v versioned, row stored.Aggregate) error {
	if cl.mayWait(v) {
		cl.visit.offered = true
		cl.consumer.store.versions.Raise(cl.consumer.prefix+string(v.id), row.Version)
		cl.visit.leave()
		cl.postpone(func(context.Context) error { return nil }) // the claim waits before it begins again
		return nil
	}
	waits := fmt.Sprintf("waits for version %d of aggregate %q", row.Version+1, v.Aggregate)
	gap := &GapError{Aggregate: v.Aggregate, Version: v.Number, Current: row.Version}
	cl.consumer.store.observeGap(cl.delivery, gap)
	if cl.inLine() {
		return cl.hold(g, v, waits)
	}
	if g.config.OnGap == GapFail && cl.lease == nil {
		lasts, within := g.config.GapFor, fmt.Sprintf(" within GapFor, %v, though it was delivered again and again", g.config.GapFor)
		if oneInFlight(cl.ctx) || cl.consumer.gaps.single() {
			lasts, within = 0, "; it was delivered again and again, and nothing else meanwhile"
		}
		if delay, again := cl.consumer.gaps.fail(cl.memoryKey, lasts); again {
			cl.sendBack(delay, gap)
			return nil
		}
		if cl.consumer.store.bellOf(cl.consumer.name()) == nil {
			cl.refuse(v, ReasonGap, gap.Error()+within)
			return nil
		}
	}
	return cl.hold(g, v, waits)
}

// leap reports a gap that GapLatest passes over. It asks the database only if this process does not
// know that the predecessor was applied. An aggregate that is new to the consumer has no gap.
func (cl *claim) leap(g *gate, v versioned) error {
	s := cl.consumer.store
	if g.config.OnGap != GapLatest || !s.observers.wanted(KindGap) && !s.debug.Load() {
		return nil
	}
	if g.config.Starts != nil && g.config.Starts(cl.gated) { // it needs no predecessor
		return nil
	}
	if current, known := s.versions.Get(cl.consumer.prefix + string(v.id)); known && v.Number <= following(current) {
		return nil
	}
	look := s.dialect.Gate.SelectAggregate
	if !s.dialect.OneWriter {
		look += " FOR UPDATE" // waits for a process that applies the predecessor now: that is no gap
	}
	var row stored.Aggregate
	err := row.Scan(cl.tx.QueryRowContext(cl.span.tx, look, cl.id32, v.id))
	if errors.Is(err, sql.ErrNoRows) || err == nil && v.Number <= following(row.Version) {
		return nil
	}
	if err == nil {
		s.observeGap(cl.delivery, overtakes(v, row.Version+1))
	}
	return err
}

// overtakes describes a gap that GapLatest passes over.
func overtakes(v versioned, missing int64) error {
	return fmt.Errorf("version gate: version %d of aggregate %q came before version %d: the newest counts", v.Number, v.Aggregate, missing)
}

// inLine reports whether other messages may stand behind this one in the order of its queue. The
// predecessor may be one of them, and the queue delivers it only once this one is out of its way.
func (cl *claim) inLine() bool { return cl.lease != nil && cl.lease.row.OrderKey != nil }

// sendBack sends the message back to its source after delay, and not at the same time as the others
// that go back.
func (cl *claim) sendBack(delay time.Duration, reason error) {
	cl.visit.leave()
	cl.postpone(func(ctx context.Context) error {
		err := sleep(ctx, delay)
		if err == nil {
			err = sleep(ctx, cl.consumer.gaps.pace())
		}
		if err == nil {
			err = reason
		}
		return err
	})
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// oneInFlight reports whether the subscriber is known to deliver one message at a time. gaps
// recognizes others by what they deliver.
func oneInFlight(ctx context.Context) bool {
	switch message.SubscriberNameFromCtx(ctx) {
	case "sql.Subscriber", "watermillsql.Subscriber", "amqp.Subscriber", "kafka.Subscriber", "redisstream.Subscriber":
		return true
	}
	return false
}

// gaps remembers, for a consumer, which messages were sent back to their source, and whether the
// source delivered others meanwhile.
type gaps struct {
	mu       sync.Mutex
	arrived  int64     // deliveries so far
	free     time.Time // from then on another message may go back to its source
	vain     bool      // since before a gap that lasted too long, nothing else arrived between two returns
	messages map[string]*returned
	cleared  time.Time // when messages that were gone were last forgotten
}

type returned struct {
	times   int       // that it was sent back
	lonely  int       // times in a row with no other delivery in between
	arrived int64     // deliveries when it was last sent back
	since   time.Time // when it was first sent back
	back    time.Time // a delivery before then is another copy
}

const (
	leastReturns = 3      // a source with a long backlog may need longer than the gap may last
	mostReturns  = 10     // if nothing else seems to arrive
	maxReturned  = 10_000 // remembered at once

	gone      = time.Hour // after that a message is expected not to be redelivered
	clearings = time.Minute

	firstReturn = 100 * time.Millisecond
	lastReturn  = 5 * time.Second
	returnPace  = 100 * time.Millisecond // between two messages of a consumer
)

// arrive counts a delivery.
func (g *gaps) arrive() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.arrived++
}

// single reports whether the source seems to deliver nothing else while it has a message to
// redeliver.
func (g *gaps) single() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.vain
}

// fail returns the delay after which a message goes back to its source, and whether it may go back
// again: not after its gap has lasted for longer than lasts. Another process may close the gap, so
// it does not matter whether this one gets other messages meanwhile. A lasts of 0 says that nothing
// else can arrive: then fail counts the returns instead.
func (g *gaps) fail(message string, lasts time.Duration) (delay time.Duration, again bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	r := g.messages[message]
	if r == nil {
		r = &returned{since: now, arrived: -1}
		g.remember(message, r)
	}
	if now.Before(r.back) {
		return pauseOf(r.times), true
	}
	r.times++
	r.lonely++
	if g.arrived != r.arrived+1 {
		r.lonely = 1
		g.vain = g.vain && r.times == 1
	}
	r.arrived = g.arrived
	if lasts == 0 {
		again = r.times <= mostReturns && r.lonely <= leastReturns
	} else if again = r.times <= leastReturns || now.Sub(r.since) < lasts; !again {
		g.vain = r.lonely == r.times
	}
	if !again {
		g.forget(message)
	}
	delay = pauseOf(r.times)
	r.back = now.Add(delay)
	return delay, again
}

// remember adds a message if there is room. It forgets no other message for it: more messages than
// fit, redelivered in turns, would push each other out, and no gap would ever be seen to last too
// long. A message without room goes back to its source until others are forgotten.
func (g *gaps) remember(message string, r *returned) {
	if len(g.messages) >= maxReturned && r.since.Sub(g.cleared) >= clearings {
		g.cleared = r.since
		maps.DeleteFunc(g.messages, func(_ string, r *returned) bool { return g.cleared.Sub(r.back) >= gone })
	}
	if len(g.messages) >= maxReturned {
		return
	}
	if g.messages == nil {
		g.messages = make(map[string]*returned)
	}
	g.messages[message] = r
}

func (g *gaps) forget(message string) { delete(g.messages, message) }

// pauseOf returns a random pause that grows with times.
func pauseOf(times int) time.Duration {
	const doublings = 6 // which are longer than lastReturn
	longest := min(firstReturn<<min(times-1, doublings), lastReturn)
	return longest/2 + rand.N(longest/2) //nolint:gosec // jitter needs no secrecy
}

// pace returns how long a message must wait for those that go back to their source before it, at
// most lastReturn: otherwise many that wait for one predecessor would be redelivered at once.
func (g *gaps) pace() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	wait := min(max(g.free.Sub(now), 0), lastReturn)
	g.free = now.Add(wait + returnPace)
	return wait
}

// passed forgets a message whose versions were applied.
func (g *gaps) passed(message string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.forget(message)
}
