package outbox

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/millrace-go/millrace/internal/dialect"
)

// block is why the messages of a key wait.
type block struct {
	head   int64 // id, 0 if it is not in hand
	ledger int   // number of the one that tells the table; 0 where the table told
}

// mostBlocks is how many keys are asked about in one look.
const mostBlocks = 500

// keyCap is how many messages of one key are in hand: twice what a lane takes, so that it never waits.
func (c *RelayConfig) keyCap() int {
	return max(min(2*mostWaves*c.KeyBurst, c.Batch/2), c.Batch/8, 1)
}

// hold takes a letter in hand.
func (p *pump) hold(l *letter) {
	p.window[l.id] = l
	if l.keyed {
		p.perKey[l.hash]++
	}
	if l.drawn {
		p.drawn++
	}
}

// letGo lets go of a letter.
func (p *pump) letGo(id int64) {
	l, there := p.window[id]
	if !there {
		return
	}
	delete(p.window, id)
	if l.drawn {
		p.drawn--
	}
	if !l.keyed {
		return
	}
	if l.back {
		if p.behind[l.hash]--; p.behind[l.hash] <= 0 {
			delete(p.behind, l.hash)
		}
	}
	if p.perKey[l.hash]--; p.perKey[l.hash] <= 0 {
		delete(p.perKey, l.hash)
	}
	p.thirst(l.hash)
}

// block makes the messages of l's key wait for l.
func (p *pump) block(l *letter) {
	if !l.keyed {
		return
	}
	_, drains := p.drains[l.hash]
	if _, known := p.blocked[l.hash]; !known || drains {
		delete(p.drains, l.hash)
		p.blocked[l.hash] = block{head: l.id, ledger: p.ledger.number}
	}
}

// waits reports whether l is behind a head that was set aside, or behind what is held back.
func (p *pump) waits(l *letter) bool {
	b, blocked := p.blocked[l.hash]
	if !l.keyed || !blocked || l.head || b.head == l.id {
		return false
	}
	_, drains := p.drains[l.hash]
	return !drains || !l.front
}

// spill has what is read of l's key from now on held back, as there is enough of it in hand.
func (p *pump) spill(l *letter) {
	if _, known := p.blocked[l.hash]; known || !l.keyed || l.again || p.perKey[l.hash] < p.config.keyCap() {
		return
	}
	d := &drain{ended: true, limit: p.config.keyCap()}
	for _, first := range p.lanes[p.laneOf(l)].letters() {
		if first.keyed && first.hash == l.hash {
			first.front = true
			d.after = max(d.after, first.id)
		}
	}
	p.blocked[l.hash], p.drains[l.hash] = block{ledger: p.ledger.number}, d
}

// holdBack has a letter in hand wait in the table.
func (p *pump) holdBack(l *letter) {
	p.ledger.hold = append(p.ledger.hold, l)
	l.back = true
	p.behind[l.hash]++
}

// keepInOrder has the table say of letters in hand that they are held back, where others of their
// key are: who has the shard next sends them first.
func (p *pump) keepInOrder() {
	if len(p.ledger.hold) == 0 {
		return
	}
	keys, known := make(map[int64]bool), make(map[int64]bool)
	for _, l := range p.ledger.hold {
		keys[l.hash] = true
	}
	for _, id := range p.ledger.letters() {
		known[id] = true
	}
	for id, l := range p.window {
		if l.keyed && keys[l.hash] && !l.held && !l.again && !known[id] {
			l.held = true
			p.ledger.kept = append(p.ledger.kept, id)
		}
	}
}

// aside is what the table says of a key of which messages are set aside.
type aside struct {
	Key      int64 `db:"blocked_key"`
	Least    int   `db:"least"`    // status
	Greatest int   `db:"greatest"` // status
}

// head reports whether there is a message that the others wait for.
func (a aside) head() bool {
	return a.Least == dialect.OutboxRetry || a.Greatest == dialect.OutboxParked
}

// blocks asks the table about keys. One of which nothing is set aside has a zero answer.
func (d *database) blocks(ctx context.Context, keys map[int64]bool, answers map[int64]aside) error {
	all := slices.Sorted(maps.Keys(keys))
	for some := range slices.Chunk(all, mostBlocks) {
		var rows []aside
		if err := d.db.SelectContext(ctx, &rows, d.sql.SelectBlocks, dialect.IDs(some)); err != nil {
			return fmt.Errorf("read which keys wait: %w", err)
		}
		for _, key := range some {
			answers[key] = aside{Key: key}
		}
		for _, row := range rows {
			answers[row.Key] = row
		}
	}
	return nil
}

// walk is a passage over all keys of which messages are set aside, some at each look. It finds those
// that nothing blocks: a relay that died left them, or an operator discarded what blocked them.
type walk struct {
	on       bool
	from     int64
	began    time.Time
	at       time.Time // when to begin, or to go on
	failures int
}

// restart begins at once.
func (w *walk) restart() { *w = walk{on: true, from: math.MinInt64, began: time.Now()} }

// due reports whether a look is to walk on.
func (w *walk) due(now time.Time) bool {
	if now.Before(w.at) {
		return false
	}
	if !w.on {
		w.restart()
	}
	return true
}

// walk lists some keys. A key of which much is set aside is one step.
func (d *database) walk(ctx context.Context, r *reading) (err error) {
	const step = 1000
	var keys []int64
	if err := d.db.SelectContext(ctx, &keys, d.sql.ListBlocks, r.walkFrom, step); err != nil {
		return fmt.Errorf("list the keys that wait: %w", err)
	}
	own := make(map[int64]bool)
	for _, key := range keys {
		if _, asked := r.blocks[key]; !asked && r.shards.owns(key) {
			own[key] = true
		}
	}
	r.walkedAll = len(keys) < step || keys[step-1] == math.MaxInt64
	if !r.walkedAll {
		r.walkNext = keys[step-1] + 1
	}
	return d.blocks(ctx, own, r.blocks)
}

// walked notes how far a look has walked. A failure stops nothing else.
func (p *pump) walked(r *reading, now time.Time) {
	w := &p.reader.walk
	switch {
	case !r.walks:
	case r.walkErr != nil:
		w.failures++
		w.at = now.Add(growing(w.failures, time.Second, orphansEvery))
		w.on = w.on && !p.once
		p.log.Error("outbox: the relay cannot tell which keys wait in vain; tried again", explain(r.walkErr), nil)
		p.fail(r.walkErr)
	case r.walkedAll:
		// So long that it takes a tenth of the time at most.
		*w = walk{at: now.Add(max(orphansEvery, 10*now.Sub(w.began)))}
	default:
		w.from, w.failures = r.walkNext, 0
		p.reader.hungry = true
	}
}

// rounds are blocked keys that a look asks about, in turn: an operator may have discarded what blocks them.
func (p *pump) rounds() []int64 {
	if len(p.toAsk) == 0 {
		p.toAsk = slices.Collect(maps.Keys(p.blocked))
	}
	n := min(len(p.toAsk), mostBlocks)
	some := p.toAsk[:n]
	p.toAsk = p.toAsk[n:]
	return some
}

// heed does what the table's answers ask for: keys wait of which messages are set aside, and what
// nothing blocks goes out.
func (p *pump) heed(r *reading) {
	for key, a := range r.blocks {
		b, known := p.blocked[key]
		if !p.shards.owns(key) || !known && a.Least == 0 {
			continue
		}
		if !known {
			p.blocked[key] = b
		}
		_, drains := p.drains[key]
		_, inHand := p.window[b.head] // a head to probe with is not set aside in the table, and yet it blocks
		switch {
		case b.ledger > r.ledger: // the table did not know
		case a.head():
			delete(p.drains, key)
			if drains {
				p.blocked[key] = block{}
			}
		case !drains && !inHand:
			p.ledger.release(key)
		}
	}
}
