package outbox

import (
	"time"

	"github.com/millrace-go/millrace/internal/dialect"
)

// turn is what a relay knows about a key that has messages in hand, or more in the table.
//
// The relay queues a message only if the unsent message of its key before it, by the table, is
// in hand too; see [pump.inTurn] and [pump.takeKey]. So the order depends on ids alone: not on
// what else is held back, nor on what this or another relay did before.
type turn struct {
	onWay int       // letters queued or in a lane
	after int64     // messages of the key that are not in hand have greater ids
	more  bool      // the table may have messages of the key that are not in hand
	asked bool      // it is in pump.asks
	limit int       // of the next look
	since time.Time // when the look began that found everything unsent up to after
}

// firstLimit is how many messages of a key the first look reads: most keys have few, and can share
// a look.
const firstLimit = 4

// keyCap is how many messages of one key may be in hand: twice what a lane takes, so that the lane
// never waits for more.
func (c *RelayConfig) keyCap() int {
	return max(min(2*mostWaves*c.KeyBurst, c.Batch/2), c.Batch/8, 1)
}

// turn returns the turn of a key.
func (p *pump) turn(key int64) *turn {
	t := p.turns[key]
	if t == nil {
		t = &turn{limit: min(firstLimit, p.config.keyCap())}
		p.turns[key] = t
	}
	return t
}

// hold takes a letter in hand.
func (p *pump) hold(l *letter) {
	p.enter(l)
	if l.drawn {
		p.drawn++
	}
	if l.keyed {
		t := p.turn(l.hash)
		t.onWay++
		if !l.again || !t.more { // or else the table may have a message before it
			t.after = max(t.after, l.id)
		}
	}
}

// letGo lets go of a letter, and has the reader look for more of its key.
func (p *pump) letGo(id int64) {
	l, there := p.window[id]
	if !there {
		return
	}
	delete(p.window, id)
	p.bytes -= l.bytes
	if l.drawn {
		p.drawn--
	}
	t := p.turns[l.hash]
	if !l.keyed || t == nil {
		return
	}
	if !l.back {
		t.onWay = max(t.onWay-1, 0)
	}
	p.ask(l.hash)
	p.forget(l.hash)
}

// forget drops a turn that says nothing any more.
func (p *pump) forget(key int64) {
	t := p.turns[key]
	if t == nil || t.onWay > 0 || t.asked {
		return
	}
	if _, blocked := p.blocked[key]; blocked || !t.more {
		delete(p.turns, key)
	}
}

// inTurn reports whether a letter that was found pending is the next of its key.
func (p *pump) inTurn(l *letter, r *reading) bool {
	if !l.keyed || l.again {
		return true
	}
	t := p.turn(l.hash)
	switch {
	case p.waits(l):
		return false
	case t.onWay >= p.config.keyCap():
		t.limit = p.config.keyCap()
		return false
	case l.behind == 0:
		return true
	case t.more && l.behind > t.after: // a message before that one may not be in hand
		return false
	}
	before := r.had[l.behind]
	if before == nil {
		before = p.window[l.behind]
	}
	return before != nil && !before.back
}

// knows notes that a look has found everything unsent of a key up to l: the look began no later
// than where the key was last read from, or nothing is before l.
func (p *pump) knows(l *letter, r *reading) {
	if !l.keyed || l.again {
		return
	}
	t := p.turn(l.hash)
	if l.id >= t.after && (l.behind == 0 || !r.tail && r.after <= p.reader.floor.before(t.since)) {
		t.since = r.began
	}
}

// unsure reports whether a look at the tail leaves a letter to the look for its key: where that
// look is coming anyway, and where the tail does not show whether the letter is next. If messages
// of the key are in hand, a transaction that was open meanwhile may have stored others before it.
func (p *pump) unsure(l *letter, r *reading) bool {
	if !r.tail || !l.keyed {
		return false
	}
	t := p.turns[l.hash]
	if t == nil || !t.asked {
		if !p.unsureOf(l, r) {
			return false
		}
		r.unsure[l.hash] = true
		p.check(l.hash)
		t = p.turns[l.hash]
	}
	t.after = min(t.after, l.id-1)
	return true
}

func (p *pump) unsureOf(l *letter, r *reading) bool {
	before := r.had[l.behind]
	return r.unsure[l.hash] || before != nil && p.inTurn(l, r)
}

// holdBack marks a letter in the table so that looks for new messages do not find it.
func (p *pump) holdBack(l *letter) {
	t := p.turn(l.hash)
	if _, there := p.window[l.id]; !there {
		p.enter(l)
	} else {
		t.onWay = max(t.onWay-1, 0)
	}
	if l.drawn {
		l.drawn = false
		p.drawn--
	}
	l.back = true
	t.more, t.after = true, min(t.after, l.id-1)
	if l.status == dialect.OutboxHeld { // the table has it already
		p.letGo(l.id)
		return
	}
	if _, blocked := p.blocked[l.hash]; blocked && !p.waits(l) { // by l, or by one behind it
		p.ledger.release(l.hash)
	}
	p.ledger.hold = append(p.ledger.hold, l)
}

// block is the head for which the later messages of a key wait.
type block struct {
	head   int64 // its id
	ledger int   // number of the ledger that writes it to the table; 0 where the table has it
}

// block makes the messages of l's key wait for l.
func (p *pump) block(l *letter) {
	if !l.keyed {
		return
	}
	l.failed = true
	p.blockAt(l, p.ledger.number)
}

// blockAt is block where the ledger with this number writes l to the table.
func (p *pump) blockAt(l *letter, ledger int) {
	if b, known := p.blocked[l.hash]; !known || l.id < b.head {
		p.blocked[l.hash] = block{head: l.id, ledger: ledger}
	}
}

// waits reports whether l is behind a head.
func (p *pump) waits(l *letter) bool {
	b, blocked := p.blocked[l.hash]
	return l.keyed && blocked && l.id > b.head
}

// open unblocks a key, and has the reader look for the messages that waited for its head.
func (p *pump) open(key int64) {
	delete(p.blocked, key)
	if !p.shards.owns(key) {
		return
	}
	t := p.turn(key)
	t.more, t.after = true, 0
	p.ask(key)
}
