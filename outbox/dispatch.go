package outbox

import (
	"time"

	"github.com/millrace-go/millrace/internal/dialect"
)

// mostWaves bounds how many messages of one key a lane takes in one run: each waits for the one
// before it, and the other messages of the lane wait for all of them.
const mostWaves = 16

// dispatch starts idle lanes on their queues. In an outage it probes: one lane at a time gets one
// message, to see whether the outage is over.
func (p *pump) dispatch() {
	if !p.maySend() {
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
		p.start(&run{lane: i, letters: p.pick(lane)})
	}
}

func (p *pump) start(r *run) {
	p.lanes[r.lane].busy, p.lanes[r.lane].run = true, r
	p.lanes[r.lane].runs <- r
}

// waves is how many messages of one key a lane takes now, in units of KeyBurst: no more than the
// second largest key has, so that the other keys do not wait for the largest.
func (p *pump) waves(lane *line) int {
	counts := make(map[int64]int)
	for _, l := range lane.queue {
		if l.keyed {
			counts[l.hash]++
		} else {
			counts[0] = 1 // all messages without a key go in one call
		}
	}
	if len(counts) < 2 {
		return mostWaves
	}
	first, second := 0, 0
	for _, n := range counts {
		first, second = max(first, n), max(second, min(first, n))
	}
	burst := p.config.KeyBurst
	return min((second+burst-1)/burst, mostWaves)
}

// pick takes from a lane's queue what the lane can publish in one run.
func (p *pump) pick(lane *line) []*letter {
	most := p.waves(lane) * p.config.KeyBurst
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

// sift takes out of a queue the letters that have to wait: those behind a head, and those to a
// topic in trouble, unless an earlier one of their key is still in the lane and may have to go
// before them.
func (p *pump) sift(lane *line) {
	type delay struct {
		topic string
		until time.Time
	}
	now := time.Now()
	var late map[delay][]*letter
	earlier := p.keysOnTheirWay(lane)
	kept := lane.queue[:0]
	for _, l := range lane.queue {
		switch until := p.trouble[l.topic].lasts(l); {
		case p.waits(l):
			p.holdBack(l)
		case l.keyed && earlier[l.hash]:
			kept = append(kept, l)
		case now.Before(until) && p.stays(l):
			kept = append(kept, l)
			p.block(l)
		case now.Before(until):
			if late == nil {
				late = make(map[delay][]*letter)
			}
			d := delay{l.topic, until}
			late[d] = append(late[d], l)
			p.passed(l.topic)
			p.block(l)
		default:
			kept = append(kept, l)
			if earlier != nil && l.keyed {
				earlier[l.hash] = true
			}
		}
	}
	clear(lane.queue[len(kept):])
	lane.queue = kept
	for d, letters := range late {
		p.postpone(letters, d.until.Sub(now), p.trouble[d.topic].err)
	}
}

// keysOnTheirWay returns the keys that a lane is publishing; nil where no topic is in trouble.
func (p *pump) keysOnTheirWay(lane *line) map[int64]bool {
	if len(p.trouble) == 0 {
		return nil
	}
	keys := make(map[int64]bool)
	if lane.run != nil {
		for _, l := range lane.run.letters {
			keys[l.hash] = keys[l.hash] || l.keyed
		}
	}
	return keys
}

func (p *pump) siftAll() {
	for i := range p.lanes {
		p.sift(&p.lanes[i])
	}
}

// postpone has letters retried later, without spending an attempt.
func (p *pump) postpone(letters []*letter, delay time.Duration, err error) {
	rows := make([]dialect.Row, 0, len(letters))
	for _, l := range letters {
		rows = append(rows, l.row())
	}
	p.ledger.postpone = append(p.ledger.postpone, postponed{letters: rows, delay: delay, reason: text(err)})
}
