package outbox

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/dialect"
)

// asking is one key of a look, which reads the unsent messages of the key in their order.
type asking struct {
	key, after int64
	limit      int
	letters    []*letter
}

// ask has the reader look for a key, if the table has more of it and the window has room.
func (p *pump) ask(key int64) {
	t := p.turns[key]
	if t == nil || !t.more || t.onWay > p.config.keyCap()/2 {
		return
	}
	if _, blocked := p.blocked[key]; !blocked {
		p.check(key)
	}
}

// check has the reader look for a key.
func (p *pump) check(key int64) {
	t := p.turn(key)
	t.more = true
	if !t.asked {
		t.asked = true
		p.asks = append(p.asks, key)
	}
}

// roomForKeys is how many letters looks for keys may take: they leave an eighth of the window to
// other looks, and half of it where those lack room.
func (p *pump) roomForKeys() int {
	most := 7 * p.config.Batch / 4
	if p.room() < p.leastRoom() {
		most = p.config.Batch
	}
	return min(p.room(), most-p.drawn)
}

// mayAsk reports whether to look for keys.
func (p *pump) mayAsk() bool {
	return len(p.asks) > 0 && p.shards != 0 && !p.full() && !p.crowdedByKeys()
}

// crowdedByKeys reports whether keys have to wait for room that letters of other keys take.
func (p *pump) crowdedByKeys() bool {
	return len(p.asks) > 0 && p.roomForKeys() < max(p.config.Batch/8, 1)
}

// askings takes the next keys to look for. A transaction that was open when messages in hand were
// read may have stored a message before them, so it reads a key again from where the floor was
// when the key was last read.
func (p *pump) askings() (all []asking) {
	room := min(p.roomForKeys(), p.reader.most)
	share := max(firstLimit, room/max(len(p.asks), 1)) // a little of many keys is sent faster than much of a few
	for len(p.asks) > 0 && room > 0 {
		key := p.asks[0]
		p.asks = p.asks[1:]
		t := p.turns[key]
		if t == nil || !t.asked {
			continue
		}
		t.asked = false
		limit := min(t.limit, share, room)
		one := asking{key: key, after: t.after, limit: limit}
		if floor := p.reader.floor.before(t.since); floor < t.after {
			one.after, one.limit = floor, limit+t.onWay
		}
		if _, blocked := p.blocked[key]; blocked { // only to see whether it still is
			one.after, one.limit = 0, 1
		}
		all = append(all, one)
		room -= limit
	}
	return all
}

// lookForKeys reads the unsent messages of some keys.
func (d *tables) lookForKeys(ctx context.Context, r *reading) error {
	together := 16 // with more, MariaDB takes long to plan
	if d.sql.KeysAreListed {
		together = max(len(r.askings), 1)
	}
	for some := range slices.Chunk(r.askings, together) {
		list := make([]dialect.Key, 0, len(some))
		at := make(map[int64]*asking)
		for i := range some {
			list = append(list, dialect.Key{Hash: some[i].key, After: some[i].after, Limit: some[i].limit})
			at[some[i].key] = &some[i]
		}
		query, args := d.sql.Keys(list)
		letters, err := d.messages(ctx, query, args...)
		if err != nil {
			return err
		}
		for _, l := range letters {
			at[l.hash].letters = append(at[l.hash].letters, l)
		}
	}
	for _, one := range r.askings {
		slices.SortFunc(one.letters, func(a, b *letter) int { return int(a.id - b.id) })
	}
	return nil
}

// tookKeys takes what a look for keys has found.
func (p *pump) tookKeys(r *reading, now time.Time) {
	void := r.err != nil || r.epoch != p.reader.epoch || p.closing.Load()
	for i := range r.askings {
		one := &r.askings[i]
		switch {
		case !p.shards.owns(one.key):
		case void:
			p.check(one.key)
		case p.stillBlocked(one, r):
		default:
			p.takeKey(one, r, now)
		}
		p.forget(one.key)
	}
}

// stillBlocked reports whether a key has to wait, and opens it if its head is gone: an operator
// may have discarded that.
func (p *pump) stillBlocked(one *asking, r *reading) bool {
	b, blocked := p.blocked[one.key]
	if !blocked {
		return false
	}
	_, inHand := p.window[b.head]
	if inHand || b.ledger > r.ledger { // the table does not show it yet
		return true
	}
	if len(one.letters) > 0 {
		first := one.letters[0]
		if first.setAside() || r.had[first.id] != nil || p.window[first.id] != nil {
			return true
		}
	}
	p.open(one.key)
	return one.limit == 1 // the look was only for the head
}

// takeKey takes the letters of a key up to the first that has to wait, or that is being held back
// or set aside: the end of another head may have opened the key meanwhile. Whatever that one waits
// for starts another look for the key when it is over.
func (p *pump) takeKey(one *asking, r *reading, now time.Time) {
	t := p.turn(one.key)
	if t.after < one.after { // a letter before those read was held back meanwhile
		p.check(one.key)
		return
	}
	for _, l := range one.letters {
		known := r.had[l.id]
		if known == nil {
			known = p.window[l.id]
		}
		switch {
		case known != nil && (known.back || known.failed || known.at != l.at):
			return
		case known != nil:
			t.after = max(t.after, l.id)
			continue
		case l.setAside():
			p.blocked[one.key] = block{head: l.id}
			return
		case t.onWay >= p.config.keyCap():
			return
		case p.room() <= 0:
			p.check(one.key)
			return
		}
		l.drawn = true
		p.take(l, now)
	}
	t.more = len(one.letters) == one.limit
	if !t.more || one.letters[one.limit-1].id >= t.after {
		t.since = r.began
	}
	if t.more {
		t.limit = min(2*t.limit, p.config.keyCap())
		p.ask(one.key)
	}
}

// walk passes over all keys with unsent messages, some with each look. It finds keys that looks
// for new messages do not: those that a relay held back before it died, and those far behind.
type walk struct {
	on       bool
	from     int64
	began    time.Time
	at       time.Time // when to begin, or to go on
	failures int
}

// restart begins a walk at once.
func (w *walk) restart() { *w = walk{on: true, from: math.MinInt64, began: time.Now()} }

// walksOn reports whether to walk now: not while there are many keys to look for.
func (p *pump) walksOn(now time.Time) bool {
	w := &p.reader.walk
	return !now.Before(w.at) && len(p.asks) < manyAsks
}

// manyAsks is how many keys to look for stop a walk, which would add to them.
const manyAsks = 500

// walk lists some keys. A key with many unsent messages is one step.
func (d *tables) walk(ctx context.Context, r *reading) error {
	const step, steps = 1000, 20
	own := make(map[int64]bool)
	for range steps {
		var keys []int64
		if err := d.db.SelectContext(ctx, &keys, d.sql.ListKeys, r.walkFrom, step); err != nil {
			return fmt.Errorf("list the keys: %w", err)
		}
		for _, key := range keys {
			if r.shards.owns(key) {
				own[key] = true
			}
		}
		if r.walkedAll = len(keys) < step || keys[step-1] == math.MaxInt64; r.walkedAll {
			break
		}
		r.walkFrom = keys[step-1] + 1
		if len(own) >= step/2 {
			break
		}
	}
	r.walked = slices.Collect(maps.Keys(own))
	return nil
}

// walked notes how far a look has walked. A failed walk stops nothing else.
func (p *pump) walked(r *reading, now time.Time) {
	w := &p.reader.walk
	if !r.walks {
		return
	}
	if r.walkErr != nil {
		w.failures++
		w.at = now.Add(max(growing(w.failures, time.Second, walkEvery), sweepRest*now.Sub(r.began)))
		w.on = w.on && !p.once
		p.log.Error("outbox: the relay cannot list the keys; retrying", database.Explain(r.walkErr), nil)
		p.fail(r.walkErr)
		return
	}
	for _, key := range r.walked {
		p.check(key)
	}
	w.from, w.failures = r.walkFrom, 0
	if r.walkedAll { // walks take a tenth of the time at most
		*w = walk{at: now.Add(max(walkEvery, 10*now.Sub(w.began)))}
	}
}

// headsToAsk returns some heads, others each time, to check whether they still block their keys.
func (p *pump) headsToAsk() map[int64]int64 {
	const most = 10_000
	if len(p.toAsk) == 0 {
		p.toAsk = slices.Collect(maps.Keys(p.blocked))
	}
	some := p.toAsk[:min(len(p.toAsk), most)]
	p.toAsk = p.toAsk[len(some):]
	heads := make(map[int64]int64)
	for _, key := range some {
		b, still := p.blocked[key]
		if _, inHand := p.window[b.head]; still && !inHand && b.ledger <= p.flusher.written {
			heads[b.head] = key
		}
	}
	return heads
}

// tookHeads has the reader look for keys whose heads are gone.
func (p *pump) tookHeads(r *reading) {
	for _, key := range r.heads {
		if _, still := p.blocked[key]; still {
			p.check(key)
		}
	}
}
