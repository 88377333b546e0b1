package outbox

import (
	"context"
	"math"
	"time"

	"github.com/millrace-go/millrace/internal/dialect"
)

// How often a relay looks when nothing wakes it.
const (
	// soonest is the first pause after a look found messages; from there the pauses double. It is
	// longer than a notifier is quiet.
	soonest = 2 * quiet
	// walkEvery is the least pause between two walks.
	walkEvery = 30 * time.Second
)

// reader decides when to look and for what. One look runs at a time.
type reader struct {
	done chan *reading
	busy bool
	stop func() // ends the look on its way

	epoch     int  // of the assignment of shards; the pump ignores readings of an earlier one
	seen      bool // the last sweep left no messages; keys may be left
	exhausted bool // and no keys are left
	walk      walk

	hungry   bool  // there may be new messages
	at       int64 // everything up to this id is in hand
	tail     tail
	pause    time.Duration // between looks
	lookAt   time.Time
	sweepAt  time.Time
	swept    time.Duration // how long the last sweep took
	dueAt    time.Time     // when the next retry is due; zero for never
	dueDone  bool          // the last look for due retries left nothing
	last     kind          // of the last look: the other kinds come next
	most     int           // letters that the next look may find
	failures int
	toldAt   time.Time // when a failure was last logged
	failing  [kinds]spell

	floor floor
}

func newReader() reader {
	return reader{done: make(chan *reading, 1), hungry: true, pause: soonest, last: keys, most: firstLook}
}

// rung notes that somebody has stored a message.
func (r *reader) rung() {
	r.hungry = true
	r.pause = soonest
}

// alarms calls at with the times of the next looks.
func (r *reader) alarms(p *pump, at func(time.Time)) {
	switch {
	case p.closing.Load(), r.busy, p.cannotTake() && !p.mayAsk():
		return // something else has to happen first
	case r.failures > 0:
		at(r.lookAt)
		return
	}
	at(later(r.lookAt, r.tail.next))
	at(r.sweepAt)
	if !r.dueAt.IsZero() {
		at(r.dueAt)
	}
	if r.tail.on {
		at(r.tail.rest)
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// room is how many more letters the window can hold.
func (p *pump) room() int { return 2*p.config.Batch - len(p.window) }

// cannotTake reports whether a look for messages would be useless: the relay has no shard or no
// room or, if it works once, has seen everything.
func (p *pump) cannotTake() bool {
	return p.shards == 0 || p.crowded() || p.once && p.reader.exhausted
}

// leastRoom is how much room makes a look worthwhile: a quarter of what looks for keys leave.
func (p *pump) leastRoom() int { return max((2*p.config.Batch-p.drawn)/4, 1) }

// read starts a look if one is due.
func (p *pump) read(ctx context.Context) {
	r := &p.reader
	if r.busy || p.closing.Load() || !p.assigned {
		return
	}
	now := time.Now()
	if r.failures > 0 && now.Before(r.lookAt) {
		return
	}
	next, some := p.nextKind(now)
	if !some {
		return
	}
	look := &reading{kind: next, epoch: r.epoch, began: now, shards: p.shards, ledger: p.flusher.written}
	switch next {
	case keys:
		look.askings = p.askings()
	case due:
		r.dueAt = time.Time{}
	case pending:
		r.hungry = false
		if look.walks = p.walksOn(now); look.walks && !r.walk.on {
			r.walk.restart()
		}
		look.walkFrom, look.ends = r.walk.from, !r.tail.on && !p.once
		if look.tail = r.tail.on && now.Before(r.tail.rest) && now.Before(r.sweepAt); look.tail {
			look.after, look.unsure = r.tail.at, make(map[int64]bool)
			break
		}
		if look.aside = p.once || !now.Before(r.sweepAt); !look.aside {
			look.after = min(r.at, r.floor.id(now))
			break
		}
		look.heads = p.headsToAsk()
	}
	look.limit = min(p.room(), p.config.Batch, r.most)
	ids := make([]int64, 0, len(p.window))
	look.had = make(map[int64]*letter)
	for id, l := range p.window {
		ids = append(ids, id)
		if l.keyed {
			look.had[id] = l
		}
	}
	look.window = dialect.IDs(ids)
	ctx, cancel := context.WithCancel(ctx)
	r.busy, r.last, r.stop = true, next, cancel
	p.beside("a look into the outbox", func() error { return p.look(ctx, look) }, func(err error) {
		cancel()
		look.err = err
		r.done <- look
	})
}

// nextKind returns the kind of the next look, and whether one is due. The kinds take turns.
func (p *pump) nextKind(now time.Time) (next kind, some bool) {
	r := &p.reader
	for i := range kinds {
		next = (r.last + 1 + i) % kinds
		switch next {
		case due:
			some = !p.cannotTake() && r.dueBy(now)
		case pending:
			some = !p.cannotTake() && (r.called(now) || r.walk.on && p.walksOn(now))
		default:
			some = p.mayAsk()
		}
		if some {
			return next, true
		}
	}
	return next, false
}

// took takes what a look has found.
func (p *pump) took(r *reading) {
	p.reader.busy = false
	now := time.Now()
	if r.kind == keys {
		defer p.siftAll()
		defer p.tookKeys(r, now)
	}
	if r.kind == due && (r.err != nil || r.epoch != p.reader.epoch || len(r.letters) == r.limit) {
		p.reader.dueAt = now // there may be more
	}
	if r.err != nil {
		p.readFailed(now, r)
		return
	}
	p.reader.failing[r.kind] = spell{}
	p.sized(r)
	if p.reader.failures > 0 {
		p.log.Info("outbox: the database can be read again", nil)
		p.reader.failures = 0
	}
	if r.epoch != p.reader.epoch || p.closing.Load() {
		p.reader.hungry = true
		return
	}
	switch r.kind {
	case due:
		p.reader.dueDone = len(r.letters) < r.limit
		p.noteDue(r)
		for _, l := range r.letters {
			if l.behind == 0 {
				p.take(l, now)
				continue
			}
			p.seen(l, now) // even if that one is in hand: others may be between them
			p.holdBack(l)
		}
	case pending:
		if p.reader.floor.lacks(r, now) {
			p.reader.sweepAt = time.Time{}
			return
		}
		p.tookPending(r, now)
	}
	p.siftAll()
}

// tookPending takes the letters that are the next of their keys, and holds back the others, so
// that the next look does not find them again.
func (p *pump) tookPending(r *reading, now time.Time) {
	back, asked := 0, 0
	for _, l := range r.letters {
		switch {
		case p.unsure(l, r): // the look for its key will take it
			asked++
		case p.inTurn(l, r):
			p.knows(l, r)
			p.take(l, now)
		default:
			p.seen(l, now)
			p.holdBack(l)
			back++
		}
	}
	if r.tail {
		p.tailPaged(r, now, asked)
		return
	}
	p.paged(r, now)
	p.reader.tail.follow(r, back, p.once)
	p.reader.tail.rest = now.Add(min(p.patience()*now.Sub(r.began), sweepEvery))
}

// patience is for how long, in multiples of the last look, the relay leaves a backlog alone and
// reads the tail. It is much longer where other keys have messages on their way, which holding
// back would slow down.
func (p *pump) patience() time.Duration {
	const few = 10
	all, largest := 0, 0
	for _, l := range p.window {
		if l.back {
			continue
		}
		all++
		if t := p.turns[l.hash]; l.keyed && t != nil {
			largest = max(largest, t.onWay)
		}
	}
	if all-largest > few {
		return restful
	}
	return 2
}

// restful is how long, in multiples of the last look, a kind of look rests where others do more.
const restful = 49

// paged decides where and when to look next.
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
	p.walked(r, now)
	if r.aside {
		rd.rest(now.Sub(r.began), now)
		rd.floor.kept = nil
		p.noteDue(r)
		p.tookHeads(r)
	}
	rd.seen = r.aside && len(r.letters) < r.limit && (rd.dueDone || !rd.dueBy(now))
	rd.exhausted = rd.seen && !rd.walk.on
}

// noteDue notes when the next retry is due.
func (p *pump) noteDue(r *reading) {
	if r.nextDue.Valid {
		p.dueIn(r.began, time.Duration(r.nextDue.Int64)*time.Microsecond)
	}
}

// called reports whether a look for new messages is due.
func (r *reader) called(now time.Time) bool {
	if !now.Before(r.sweepAt) || r.tail.on && !now.Before(r.tail.rest) {
		return true
	}
	return (r.hungry || !now.Before(r.lookAt)) && !now.Before(r.tail.next)
}

// dueBy reports whether a retry is due.
func (r *reader) dueBy(now time.Time) bool { return !r.dueAt.IsZero() && !now.Before(r.dueAt) }

func (p *pump) dueIn(now time.Time, wait time.Duration) {
	at := now.Add(max(wait, 0))
	if p.reader.dueAt.IsZero() || at.Before(p.reader.dueAt) {
		p.reader.dueAt = at
	}
}

// take takes a letter in hand and queues it for its lane.
func (p *pump) take(l *letter, now time.Time) {
	if !p.shards.owns(l.hash) {
		return
	}
	p.seen(l, now)
	l.failedAt = p.suspect[l.id]
	p.hold(l)
	if l.head {
		p.blockAt(l, 0)
	}
	lane := &p.lanes[spread(l.hash>>8, len(p.lanes))]
	lane.queue = append(lane.queue, l)
}

// seen notes how far the reader has come.
func (p *pump) seen(l *letter, now time.Time) {
	if l.keyed {
		p.reader.floor.keyed = now
	}
	if !l.head && !l.drawn {
		p.reader.floor.seen(now, l.id)
	}
}

// tail is the end of the table, which the reader reads first while a few keys have a backlog
// before it. It finds new messages there, and holds the backlog back slowly, so that this takes
// little from other keys.
type tail struct {
	on       bool
	rest     time.Time // until when the reader leaves the backlog alone
	next     time.Time // when to read the tail
	from, at int64     // ids
}

// follow turns to the tail when most of a full page was held back, and from it when a page is not
// full.
func (t *tail) follow(r *reading, back int, once bool) {
	switch {
	case len(r.letters) < r.limit:
		*t = tail{}
	case !t.on && !once && 2*back >= len(r.letters):
		*t = tail{on: true, from: r.highest, at: r.highest}
	}
}

// tailPaged decides where and when to read the tail next.
func (p *pump) tailPaged(r *reading, now time.Time, asked int) {
	rd := &p.reader
	rd.tail.at = rd.tail.from
	if len(r.letters) == r.limit {
		rd.tail.at = r.letters[r.limit-1].id
		rd.hungry = true
	}
	if 2*asked > len(r.letters) { // looks for keys will find those
		rd.tail.next = now.Add(min(restful/2*now.Sub(r.began), sweepEvery))
	}
	rd.lookAt = now.Add(soonest)
	p.walked(r, now)
}
