package outbox

import (
	"time"
)

// mostWaves bounds how many messages of one key a lane takes at once: each of them waits
// for the one before, and the other messages of the lane wait for all.
const mostWaves = 16

// dispatch gives idle lanes what stands before them. In an outage one lane at a time gets
// one message, to see whether it is over.
func (p *pump) dispatch() {
	if p.closing || !p.lease.valid() {
		return
	}
	if p.outage.on {
		p.probe()
		return
	}
	for i := range p.lanes {
		lane := &p.lanes[i]
		if lane.busy || len(lane.queue) == 0 {
			continue
		}
		p.start(i, p.pick(lane))
	}
}

func (p *pump) start(lane int, letters []*letter) {
	p.lanes[lane].busy = true
	p.lanes[lane].runs <- &run{lane: lane, letters: letters}
}

// pick takes what a lane can publish in one run from the head of its queue.
func (p *pump) pick(lane *line) []*letter {
	most := mostWaves * p.config.KeyBurst
	counts := make(map[int64]int)
	var picked []*letter
	rest := lane.queue[:0]
	for _, l := range lane.queue {
		if len(picked) == p.config.Batch || l.keyed && counts[l.hash] == most {
			rest = append(rest, l)
			continue
		}
		if l.keyed {
			counts[l.hash]++
		}
		picked = append(picked, l)
	}
	clear(lane.queue[len(rest):])
	lane.queue = rest
	return picked
}

// sift takes out of a queue what has to wait: messages behind a head that was set aside,
// and messages to a topic that is in trouble.
func (p *pump) sift(lane *line) {
	now := time.Now()
	var late map[string][]*letter
	kept := lane.queue[:0]
	for _, l := range lane.queue {
		b, blocked := p.blocked[l.hash]
		switch t, ill := p.trouble[l.topic]; {
		case l.keyed && blocked && !l.head && b.head != l.id:
			p.ledger.hold = append(p.ledger.hold, l)
		case ill && now.Before(t.until):
			if late == nil {
				late = make(map[string][]*letter)
			}
			late[l.topic] = append(late[l.topic], l)
			p.block(l, now)
		default:
			kept = append(kept, l)
		}
	}
	clear(lane.queue[len(kept):])
	lane.queue = kept
	for topic, letters := range late {
		t := p.trouble[topic]
		p.postpone(letters, t.until.Sub(now), t.err)
	}
}

func (p *pump) siftAll() {
	for i := range p.lanes {
		p.sift(&p.lanes[i])
	}
}

// block makes the messages of l's key wait for l.
func (p *pump) block(l *letter, now time.Time) {
	if !l.keyed {
		return
	}
	if _, known := p.blocked[l.hash]; !known {
		p.blocked[l.hash] = block{head: l.id, since: now}
	}
}

// postpone has letters tried again later, without an attempt spent.
func (p *pump) postpone(letters []*letter, delay time.Duration, err error) {
	ids := make([]int64, 0, len(letters))
	for _, l := range letters {
		ids = append(ids, l.id)
	}
	p.ledger.postpone = append(p.ledger.postpone, postponed{letters: ids, delay: delay, reason: text(err)})
	p.dueIn(time.Now(), delay)
}
