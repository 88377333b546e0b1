package outbox

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/millrace/internal/outage"
)

// brokerOutage is a time in which nothing gets through. No attempts are spent, and one
// message at a time finds out whether it is over.
type brokerOutage struct {
	on      bool
	began   time.Time
	probing bool
	probes  int // that failed
	probeAt time.Time
	last    string               // topic of the last probe
	probed  map[string]time.Time // topics
}

// beginOutage pauses all lanes, or, where they are paused, pauses them for longer.
func (p *pump) beginOutage(ctx context.Context, l *letter, err error, r *run, now time.Time) {
	o := &p.outage
	if o.on && !r.probe {
		return // a run that began before
	}
	reason := "the broker is still out"
	if !o.on {
		reason = "nothing gets through"
		*o = brokerOutage{on: true, began: now, probed: make(map[string]time.Time)}
		p.log.Error("outbox: nothing gets through to the broker; waiting", err, nil)
	}
	o.probing = false
	o.probes++
	o.probeAt = now.Add(growing(o.probes, outage.First, outage.Longest))
	o.last = l.topic
	o.probed[l.topic] = now
	p.makeRoom(err)
	p.fail(err)
	for _, observer := range p.observe.outage {
		observer.ObserveOutage(ctx, RelayEvent{Topic: l.topic, Reason: reason, Duration: now.Sub(o.began), Err: err})
	}
}

// probed makes way for the next probe after one that neither ended the outage nor showed
// that it goes on: its message was set aside, or the lease was over.
func (p *pump) probed(r *run, now time.Time) {
	if !r.probe || !p.outage.probing {
		return
	}
	p.outage.probing = false
	if !errors.Is(r.fates[0].err, ErrPermanent) {
		p.outage.probeAt = now.Add(growing(p.outage.probes, outage.First, outage.Longest))
	}
}

// endOutage lets all lanes go on.
func (p *pump) endOutage(ctx context.Context) {
	if !p.outage.on {
		return
	}
	lasted := time.Since(p.outage.began)
	p.outage = brokerOutage{}
	p.log.Info("outbox: messages get through to the broker again", watermill.LogFields{"after": lasted.String()})
	for _, observer := range p.observe.outage {
		observer.ObserveOutage(ctx, RelayEvent{Reason: "over", Duration: lasted})
	}
}

// probe sends one message, of the topic that was probed the longest ago: one topic that
// fails looks like an outage only as long as no other is tried.
func (p *pump) probe() {
	o := &p.outage
	if o.probing || time.Now().Before(o.probeAt) || p.once {
		return
	}
	lane, at := -1, 0
	var oldest time.Time
	for i := range p.lanes {
		if p.lanes[i].busy {
			continue
		}
		for k, l := range p.lanes[i].firsts() {
			if probed := o.probed[l.topic]; lane < 0 || probed.Before(oldest) {
				lane, at, oldest = i, k, probed
			}
		}
	}
	if lane < 0 {
		return
	}
	queue := p.lanes[lane].queue
	l := queue[at]
	p.lanes[lane].queue = append(queue[:at], queue[at+1:]...)
	o.probing = true
	p.start(&run{lane: lane, letters: []*letter{l}, probe: true})
}

// firsts yields the letters of a queue that are the first of their key and of their topic.
func (l *line) firsts() map[int]*letter {
	keys, topics := make(map[int64]bool), make(map[string]bool)
	firsts := make(map[int]*letter)
	for i, letter := range l.queue {
		if !topics[letter.topic] && (!letter.keyed || !keys[letter.hash]) {
			topics[letter.topic] = true
			firsts[i] = letter
		}
		keys[letter.hash] = true
	}
	return firsts
}

// makeRoom postpones the messages of the topic that was probed last where nothing else can
// be read: behind them may be messages of a topic that works. What is read later stays in
// hand until the next probe, so that an outage does not rewrite the whole backlog.
func (p *pump) makeRoom(err error) {
	const patience = 3
	if p.outage.probes < patience || p.room() >= p.leastRoom() {
		return
	}
	t := p.trouble[p.outage.last]
	t.fail(time.Now(), err, &p.config)
	t.inHand = true
	p.trouble[p.outage.last] = t
	p.resift = true
}
