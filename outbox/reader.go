package outbox

import (
	"context"
	"math"
	"math/rand/v2"
	"time"

	"github.com/millrace-go/millrace/internal/dialect"
)

// How often a relay looks where nothing is announced.
const (
	// soonest is the first pause after messages were found; the pauses double from there. It
	// is longer than a notifier is quiet.
	soonest = 2 * quiet
	// sweepEvery is the pause between two looks at the whole table: it bounds the delay of a
	// message whose transaction was open for longer than horizon.
	sweepEvery = time.Second
	// orphansEvery is the pause between two looks for messages that wait in vain.
	orphansEvery = 30 * time.Second
)

// reader decides when to look into the table, and for what. One look runs at a time.
type reader struct {
	done chan *reading
	busy bool

	epoch     int  // of what is known; a reading of an earlier one is void
	ready     bool // the blocked keys of all shards are known
	exhausted bool // a look at the whole table left nothing

	orphansAt time.Time // when to look for messages that wait in vain

	hungry   bool          // there may be something
	at       int64         // everything up to here is in hand
	pause    time.Duration // between looks
	lookAt   time.Time
	sweepAt  time.Time
	dueAt    time.Time // when a message is to be tried again; zero for never
	wasDue   bool      // the last look was for those, so that others have their turn
	dueDone  bool      // a look for those left nothing
	failures int

	floor floor
}

func newReader() reader {
	return reader{done: make(chan *reading, 1), hungry: true, pause: soonest}
}

// rung says that somebody stored something.
func (r *reader) rung() {
	r.hungry = true
	r.pause = soonest
}

// alarms tells when to look next if nothing happens.
func (r *reader) alarms(p *pump, at func(time.Time)) {
	switch {
	case p.closing.Load(), r.busy, r.ready && p.cannotTake():
		return // something else will happen first
	case r.failures > 0:
		at(r.lookAt)
		return
	}
	at(r.lookAt)
	at(r.sweepAt)
	if !r.dueAt.IsZero() {
		at(r.dueAt)
	}
}

// room is how many more letters may be taken in hand.
func (p *pump) room() int { return 2*p.config.Batch - len(p.window) }

// cannotTake reports whether a look for messages is of no use: there is no shard, no room,
// or, for a pump that works once, nothing that it has not seen.
func (p *pump) cannotTake() bool {
	return p.shards.mask == 0 || p.room() < p.leastRoom() || p.once && p.reader.exhausted
}

// leastRoom is how much room makes a look worth while.
func (p *pump) leastRoom() int { return max(p.config.Batch/2, 1) }

// read starts a look if one is called for.
func (p *pump) read(ctx context.Context) {
	r := &p.reader
	if r.busy || p.closing.Load() || p.wanted.generation == 0 {
		return
	}
	now := time.Now()
	look := &reading{epoch: r.epoch, began: now, shards: p.shards}
	switch {
	case r.failures > 0 && now.Before(r.lookAt):
		return
	case !r.ready:
		look.kind, look.shards = load, p.wanted
	case p.cannotTake():
		return
	case r.dueBy(now) && (!r.wasDue || !r.called(now)):
		look.kind, r.dueAt = due, time.Time{}
	case !now.Before(r.sweepAt), p.once && r.called(now):
		look.kind, look.aside = pending, true
		look.orphaned = !now.Before(r.orphansAt)
	case r.called(now):
		look.kind, look.after = pending, min(r.at, r.floor.id(now))
	default:
		return
	}
	look.limit = min(p.room(), p.config.Batch)
	look.known, look.ledger = len(p.blocked) > 0, p.flusher.written
	ids := make([]int64, 0, len(p.window))
	for id := range p.window {
		ids = append(ids, id)
	}
	look.window = dialect.IDs(ids)
	r.busy, r.wasDue = true, look.kind == due
	if look.kind == pending {
		r.hungry = false
	}
	p.beside("a look into the outbox", func() error { return p.look(ctx, look) }, func(err error) {
		look.err = err
		r.done <- look
	})
}

// took takes what was found in hand.
func (p *pump) took(r *reading) {
	p.reader.busy = false
	now := time.Now()
	if r.kind == due && (r.err != nil || r.epoch != p.reader.epoch || len(r.letters) == r.limit) {
		p.reader.dueAt = now // there may be more
	}
	if r.err != nil {
		p.readFailed(now, r.err)
		return
	}
	if p.reader.failures > 0 {
		p.log.Info("outbox: the database can be read again", nil)
		p.reader.failures = 0
	}
	if r.epoch != p.reader.epoch || p.closing.Load() {
		p.reader.hungry = true
		return
	}
	switch r.kind {
	case load:
		p.loaded(r)
		return
	case due:
		p.reader.dueDone = len(r.letters) < r.limit
	case pending:
		if p.reader.floor.lacks(r, now) {
			p.reader.sweepAt = time.Time{}
			return
		}
		p.paged(r, now)
	}
	for _, l := range r.letters {
		p.take(l, now)
	}
	p.siftAll()
}

// paged decides from where and when to look again.
func (p *pump) paged(r *reading, now time.Time) {
	rd := &p.reader
	rd.at = math.MaxInt64
	switch {
	case len(r.letters) == r.limit:
		rd.hungry = true
		rd.at = r.letters[r.limit-1].id
	case len(r.letters) > 0:
		rd.pause = soonest
	default:
		rd.pause = min(2*rd.pause, p.config.Poll)
	}
	rd.lookAt = now.Add(rd.pause)
	if r.aside {
		p.unblock(r)
		if r.orphaned {
			p.adopt(r)
		}
		rd.sweepAt = now.Add(sweepEvery)
		p.noteDue(r, now)
	}
	rd.exhausted = r.aside && len(r.letters) < r.limit && (rd.dueDone || !rd.dueBy(now))
}

// noteDue notes when the next message is to be tried again.
func (p *pump) noteDue(r *reading, now time.Time) {
	if r.nextDue.Valid {
		p.dueIn(now, time.Duration(r.nextDue.Int64)*time.Microsecond)
	}
}

// called reports whether a look for messages that were never tried is called for.
func (r *reader) called(now time.Time) bool {
	return r.hungry || !now.Before(r.lookAt) || !now.Before(r.sweepAt)
}

// dueBy reports whether something is to be tried again by now.
func (r *reader) dueBy(now time.Time) bool { return !r.dueAt.IsZero() && !now.Before(r.dueAt) }

func (p *pump) dueIn(now time.Time, wait time.Duration) {
	at := now.Add(max(wait, 0))
	if p.reader.dueAt.IsZero() || at.Before(p.reader.dueAt) {
		p.reader.dueAt = at
	}
}

// take puts one letter before its lane.
func (p *pump) take(l *letter, now time.Time) {
	if !p.shards.owns(l.hash) {
		return
	}
	if l.keyed {
		p.reader.floor.keyed = now
	}
	if !l.head {
		p.reader.floor.seen(now, l.id)
	}
	l.failedAt = p.suspect[l.id]
	p.window[l.id] = l
	lane := &p.lanes[spread(l.hash>>8, len(p.lanes))]
	lane.queue = append(lane.queue, l)
}

// loaded starts to work on shards whose blocked keys are known now.
func (p *pump) loaded(r *reading) {
	p.shards = r.shards
	p.reader.ready = true
	p.reader.sweepAt, p.reader.exhausted, p.reader.dueDone = time.Time{}, false, false
	known := p.blocked
	p.blocked = make(map[int64]block, len(r.blocked))
	for _, key := range r.blocked {
		p.blocked[key] = block{}
	}
	for key, b := range known {
		if p.shards.owns(key) {
			p.blocked[key] = b
		}
	}
	p.adopt(r)
	p.noteDue(r, time.Now())
}

// adopt releases keys that wait for nothing: a relay that lost its lease can have written
// such a row at the last moment.
func (p *pump) adopt(r *reading) {
	for _, key := range r.orphans {
		if _, waits := p.blocked[key]; !waits { // what was stored since is behind what is held back
			p.blocked[key] = block{ledger: p.ledger.number}
			p.ledger.release(key)
		}
	}
	p.reader.orphansAt = r.began.Add(orphansEvery)
}

// unblock releases keys whose parked message an operator has discarded.
func (p *pump) unblock(r *reading) {
	if !r.known {
		return
	}
	still := make(map[int64]bool, len(r.blocked))
	for _, key := range r.blocked {
		still[key] = true
	}
	for key, b := range p.blocked {
		// A head that is kept to probe with is not set aside in the table, and yet it blocks.
		if _, inHand := p.window[b.head]; !still[key] && b.ledger <= r.ledger && !inHand {
			p.ledger.release(key)
		}
	}
}

// readFailed waits, longer with each failure, for the database.
func (p *pump) readFailed(now time.Time, err error) {
	rd := &p.reader
	if rd.failures == 0 {
		p.log.Error("outbox: the relay cannot read the outbox; tried again", explain(err), nil)
	}
	rd.failures++
	rd.hungry = true
	rd.at, rd.floor = 0, floor{keyed: rd.floor.keyed} // another server may answer next
	rd.lookAt = now.Add(growing(rd.failures, 100*time.Millisecond, 5*time.Second))
	p.fail(err)
}

// growing is the n-th of pauses that double from first to longest, with jitter.
func growing(n int, first, longest time.Duration) time.Duration {
	pause := min(first<<min(n-1, 30), longest)
	if pause <= 0 {
		pause = longest
	}
	return pause/2 + rand.N(pause/2+1) //nolint:gosec // jitter needs no secrecy
}
