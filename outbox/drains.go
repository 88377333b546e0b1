package outbox

import "time"

// drain is a key of which nothing failed, and yet messages are held back: a head was sent that others
// waited for, or there are so many that they would keep other keys from being read. They go out from
// where they are held, some at a time, and what is read of the key goes behind them.
type drain struct {
	after  int64 // what is held up to here was in hand
	ended  bool  // the last look found no more that may go
	queued bool  // in pump.thirsty
	limit  int   // of the next look
	holds  int   // how many were held back meanwhile
	next   int64 // the first that is held, while the table is not yet read up to it; else 0
	early  bool  // in pump.early
}

// firstDraught is how much is read of a key at first: many keys have little, and then share a look.
const firstDraught = 4

// open has what is held back of a key go out: nothing fails that it waits for.
func (p *pump) open(key int64, ledger int) {
	if !p.shards.owns(key) {
		return
	}
	if _, drains := p.drains[key]; !drains {
		p.blocked[key], p.drains[key] = block{ledger: ledger}, &drain{limit: min(firstDraught, p.config.keyCap())}
	}
	p.thirst(key)
}

// thirst has a key's messages read if few of them are in hand.
func (p *pump) thirst(key int64) {
	d, n := p.drains[key], p.perKey[key]
	if d == nil || d.queued || d.next != 0 || n > 0 && (d.ended || n-p.behind[key] > p.config.keyCap()/2) {
		return
	}
	d.queued = true
	p.thirsty = append(p.thirsty, key)
}

// mayDrain reports whether to read what is held back. It leaves half of the room to others.
func (p *pump) mayDrain() bool {
	return len(p.thirsty) > 0 && p.shards.mask != 0 && min(p.room(), p.config.Batch-p.drawn) >= p.leastRoom()
}

// draught is one key of which a look reads what is held back.
type draught struct {
	drain      *drain
	key, after int64
	limit      int
	letters    []*letter

	// When the look began.
	whole  bool           // nothing of the key was in hand, and everything that is held is asked for
	holds  int            // of the drain
	inHand map[int64]bool // by id
	before int64          // the first in hand that does not go out itself, such as one about to be held back; 0 for none
}

// draughts takes keys whose turn it is.
func (p *pump) draughts() []draught {
	var all []draught
	some := make(map[int64]int) // of which something is in hand
	for room := min(p.room(), p.config.Batch-p.drawn); len(p.thirsty) > 0 && room > 0; {
		key := p.thirsty[0]
		p.thirsty = p.thirsty[1:]
		d, n := p.drains[key], p.perKey[key]
		if d == nil {
			continue
		}
		free := max(p.config.keyCap()-n+p.behind[key], 1)
		one := draught{drain: d, key: key, after: d.after, limit: min(free, d.limit, room), holds: d.holds}
		if d.ended { // and nothing is in hand: what was stored late lies anywhere
			one.after = 0
		}
		if one.whole = n == 0 && one.after == 0; n > 0 {
			some[key], one.inHand = len(all), make(map[int64]bool)
		}
		all = append(all, one)
		room -= one.limit
	}
	if len(some) == 0 {
		return all
	}
	for id, l := range p.window {
		if i, asked := some[l.hash]; asked && l.keyed {
			one := &all[i]
			one.inHand[id] = true
			if !l.front && (one.before == 0 || id < one.before) {
				one.before = id
			}
		}
	}
	return all
}

// stops reports whether l, and what is behind it, has to wait for something that is in hand, or was
// when the look began.
func (d *draught) stops(p *pump, l *letter) bool {
	_, there := p.window[l.id]
	return there || d.inHand[l.id] || d.before != 0 && l.id > d.before
}

// tookHeld takes what was found in hand. A key of which nothing is held back any more is like any other.
func (p *pump) tookHeld(r *reading, now time.Time) {
	for i := range r.draughts {
		one := &r.draughts[i]
		d := p.drains[one.key]
		if d == nil || d != one.drain {
			continue // a message of it failed meanwhile
		}
		d.queued = false
		if r.err != nil || r.epoch != p.reader.epoch || p.closing.Load() {
			p.thirst(one.key)
			continue
		}
		p.drink(d, one, now)
		if one.whole && len(one.letters) == 0 && p.perKey[one.key] == 0 {
			delete(p.blocked, one.key)
			delete(p.drains, one.key)
			p.reader.at, p.reader.hungry, p.reader.exhausted = 0, true, false
			continue
		}
		p.thirst(one.key)
	}
}

// drink takes what of a key may go out, in the order of ids: of what is pending in the table, some may
// come first.
func (p *pump) drink(d *drain, one *draught, now time.Time) {
	d.ended = len(one.letters) < one.limit
	for _, l := range one.letters {
		if one.stops(p, l) {
			d.ended = true
			break
		}
		if l.id > p.reader.upTo {
			d.next = l.id
			break
		}
		l.front, l.held, l.drawn = true, true, true
		d.after = l.id
		p.take(l, now)
	}
	switch {
	case d.next != 0 && !d.early:
		d.early = true
		p.early = append(p.early, one.key)
	case d.next == 0 && !d.ended:
		d.limit = min(2*d.limit, p.config.keyCap())
	}
	if d.holds != one.holds { // the look may have missed it
		d.ended = false
	}
}

// heldBack notes that the table has a letter as held back.
func (p *pump) heldBack(l *letter) {
	d := p.drains[l.hash]
	if d == nil {
		return
	}
	d.ended = false
	d.holds++
	if l.id < d.next {
		d.next = 0
	}
}

// passed notes that everything behind one id and up to another was in hand, and has keys go on that
// waited for it.
func (r *reader) passed(p *pump, after, upTo int64) {
	if after > r.upTo || upTo <= r.upTo {
		return
	}
	r.upTo = upTo
	early := p.early[:0]
	for _, key := range p.early {
		d := p.drains[key]
		switch {
		case d == nil:
		case d.next > upTo:
			early = append(early, key)
		default:
			d.early, d.next, d.ended = false, 0, false
			p.thirst(key)
		}
	}
	p.early = early
}
