package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/stored"
)

// How long a message waits in memory for its predecessor. While it waits, its source has a message less
// in flight, and nothing of it is in the database.
const (
	earlyFor   = time.Second           // at most
	earlyStill = 50 * time.Millisecond // if all that the source has in flight waits, and nothing else arrives
)

// foresee returns the version of a message that came before its predecessor was applied, as far as this
// process knows. It is a guess: a middleware between inbox and gate may change the message, and another
// process may have applied the predecessor. The gate decides, in the transaction.
func (cl *claim) foresee() (v versioned, early bool) {
	c, g := cl.consumer, cl.consumer.gate.Load()
	if g == nil || cl.lease != nil || cl.keyless.text != "" || oneInFlight(cl.ctx) || c.batches.holds() {
		return versioned{}, false
	}
	versions := g.versionsOf(cl.msg)
	cl.visit.foreseen, cl.visit.foresaw = versions, true
	if len(versions) != 1 || g.config.OnGap == GapLatest || g.starts(cl.msg) {
		return versioned{}, false
	}
	current, known := c.store.versions.Get(c.prefix + string(versions[0].id))
	return versions[0], known && versions[0].Number > following(current)
}

// versionsOf returns the versions of msg, none if it names none or a function of the service fails: the
// gate then says so in the transaction.
func (g *gate) versionsOf(msg *message.Message) (all []versioned) {
	defer func() {
		if recover() != nil {
			all = nil
		}
	}()
	versions, err := g.config.Version(msg)
	if err != nil {
		return nil
	}
	all, err = ordered(versions)
	if err != nil {
		return nil
	}
	return all
}

// starts reports whether msg begins its aggregate, for callers outside of the handler's run: a message for
// which Starts panics waits for nothing.
func (g *gate) starts(msg *message.Message) (yes bool) {
	defer func() {
		if recover() != nil {
			yes = true
		}
	}()
	return g.config.Starts != nil && g.config.Starts(msg)
}

// compare checks, in the transaction, what was foreseen. The first message of a consumer makes its gate known.
// If a middleware between inbox and gate changes versions, nothing is foreseen any more.
func (cl *claim) compare(g *gate, versions []versioned) {
	c := cl.consumer
	if cl.lease != nil || c.unforeseen.Load() || !cl.visit.foresaw && c.gate.Load() == g {
		return
	}
	if !cl.visit.foresaw {
		cl.visit.foreseen = g.versionsOf(cl.as.Seen.Copy())
	}
	if sameVersions(cl.visit.foreseen, versions) {
		c.gate.Store(g)
		return
	}
	c.unforeseen.Store(true)
	c.gate.Store(nil)
}

func sameVersions(a, b []versioned) bool {
	return slices.EqualFunc(a, b, func(a, b versioned) bool { return a.Version == b.Version })
}

// mayWait reports whether a message with a gap may wait in memory, and has not yet. The gate offers that once: the claim, which sees
// the message before a middleware has changed it, may find that it starts its aggregate and need not wait.
func (cl *claim) mayWait(v versioned) bool {
	return cl.lease == nil && !cl.visit.waited && !cl.visit.offered && !oneInFlight(cl.ctx) && !cl.consumer.batches.holds() && cl.known == cl.consumer.store.db.Generation() &&
		len(cl.visit.foreseen) == 1 && cl.visit.foreseen[0].Version == v.Version && cl.consumer.gate.Load() != nil && cl.consumer.early.open()
}

// await has a message that came too early wait in memory until its predecessor is applied, by this
// process or another, or the wait is over.
func (cl *claim) await() error {
	v, early := cl.foresee()
	if !early || cl.visit.waited {
		return nil
	}
	cl.visit.waited = true
	cl.visit.leave() // its predecessor needs the turn of the aggregate
	c := cl.consumer
	aggregate := c.prefix + string(v.id)
	current, _ := c.store.versions.Get(aggregate)
	w := c.early.join(aggregate, v.Number, current, len(cl.msg.Payload))
	if w == nil {
		return nil
	}
	defer c.early.leave(w)
	if current, _ = c.store.versions.Get(aggregate); v.Number <= following(current) { // it was applied before join
		return nil
	}
	if c.store.debug.Load() {
		cl.log().Debug("inbox: a message waits in memory for its predecessor", nil)
	}
	return cl.awaitTurn(v, w)
}

func (cl *claim) awaitTurn(v versioned, w *waiter) error {
	early, aggregate := cl.consumer.early, cl.consumer.prefix+string(v.id)
	began := time.Now()
	look := time.NewTicker(earlyStill)
	defer look.Stop()
	var turn asking
	var again <-chan time.Time
	asker := w.line.asker
	defer func() {
		if asker == nil {
			w.line.asker <- turn
		}
	}()
	moves := early.moved()
	for {
		select {
		case <-w.turn:
			return nil
		case turn = <-asker:
			asker, again = nil, time.After(early.firstAsk(turn))
		case <-again:
			current, err := cl.askVersion(v)
			if err != nil { // if the database is down, the claim says so
				return nil //nolint:nilerr // see above
			}
			turn = turn.answered(current)
			again = time.After(turn.pause)
			early.tell(aggregate, current)
		case <-look.C:
			before := moves
			if moves = early.moved(); moves == before && early.stuck() || time.Since(began) >= earlyFor {
				return nil
			}
		case <-cl.ctx.Done():
			return cl.ctx.Err()
		case <-cl.consumer.store.work.closed:
			return ErrClosed
		}
	}
}

// askVersion asks the database for the version of an aggregate, which another process may have advanced.
func (cl *claim) askVersion(v versioned) (current int64, err error) {
	c, s := cl.consumer, cl.consumer.store
	reg, err := c.register(cl.ctx)
	if err != nil {
		return 0, err
	}
	current, err = s.currentVersion(cl.ctx, reg.ID, v.id)
	if err != nil {
		return 0, err
	}
	aggregate := c.prefix + string(v.id)
	if turn, free := s.aggregates.Try(aggregate); free { // no message of this process is about to advance it
		if known, _ := s.versions.Get(aggregate); current > known {
			c.early.sawOthers()
		}
		turn.Fail()
	}
	if reg.Generation == s.db.Generation() {
		s.versions.Raise(aggregate, current)
	}
	return current, nil
}

// currentVersion returns -1 for an aggregate that has no row.
func (s *Store) currentVersion(ctx context.Context, consumer int32, aggregate []byte) (int64, error) {
	var row stored.Aggregate
	err := row.Scan(s.db.QueryRowContext(ctx, s.dialect.Gate.SelectAggregate, consumer, aggregate))
	if errors.Is(err, sql.ErrNoRows) {
		return -1, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the version: %w", err)
	}
	return row.Version, nil
}
