package outbox

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/millrace/internal/outage"
)

// brokerOutage is a time in which nothing gets through. The relay spends no attempts, and probes
// with one message at a time until the outage is over.
type brokerOutage struct {
	on      bool
	began   time.Time
	shown   *brokerOut // for operators
	probing bool
	probes  int // how many have failed
	probeAt time.Time
	last    string               // topic of the last probe
	topics  map[string]time.Time // when each was last probed
	letters map[int64]time.Time  // when each was last probed with, by id

	failures map[string]int   // of probes, by topic
	passes   int              // how many messages were passed over last
	kept     map[string]int64 // by topic, a message that is kept to probe with
}

// beginOutage pauses all lanes, or keeps them paused for longer.
func (p *pump) beginOutage(ctx context.Context, l *letter, err error, r *run, now time.Time) {
	o := &p.outage
	if o.on && !r.probe {
		return // the run began before the outage
	}
	reason := "the broker is still out"
	if !o.on {
		reason = "nothing gets through"
		*o = brokerOutage{
			on: true, began: now,
			topics: make(map[string]time.Time), letters: make(map[int64]time.Time),
			failures: make(map[string]int), kept: make(map[string]int64),
		}
		p.log.Error("outbox: nothing gets through to the broker; waiting", err, l.fields())
	}
	o.probing = false
	o.probes++
	o.probeAt = now.Add(growing(o.probes, outage.First, outage.Longest))
	o.last = l.topic
	o.topics[l.topic], o.letters[l.id] = now, now
	o.failures[l.topic]++
	if out := newBrokerOut(l, err, o.began); o.shown == nil || out.text != o.shown.text {
		o.shown = out
	}
	p.makeRoom(err)
	p.fail(fmt.Errorf("message %q to topic %q: %w", l.msg.UUID, l.topic, err))
	e := l.event(reason, err)
	e.Duration = now.Sub(o.began)
	p.tell(ctx, KindOutage, e)
}

// probed makes way for the next probe after one that showed nothing: its message was set aside,
// or the lease had ended.
func (p *pump) probed(r *run, now time.Time) {
	if !r.probe || !p.outage.probing {
		return
	}
	p.outage.probing = false
	if err := r.fates[0].err; err == nil || !err.permanent {
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
	for topic, t := range p.trouble {
		if t.passes > 0 {
			delete(p.trouble, topic)
		}
	}
	p.log.Info("outbox: messages get through to the broker again", watermill.LogFields{"after": lasted.String()})
	p.tell(ctx, KindOutage, Event{Reason: "over", Duration: lasted})
}

// leaveOutage tells observers that the pump no longer finds out whether the outage lasts, except
// after RelayBatch, which the next call continues.
func (p *pump) leaveOutage(ctx context.Context) {
	if p.outage.on && !p.once {
		p.tell(ctx, KindOutage, Event{Reason: "the relay stops", Duration: time.Since(p.outage.began)})
	}
}

// probe sends one message: of the topic that was probed the longest ago, the one that failed the
// longest ago or never. So a single topic or message that fails looks like an outage only until
// another is tried.
func (p *pump) probe() {
	o := &p.outage
	if o.probing || time.Now().Before(o.probeAt) && !p.once {
		return
	}
	lane, at := p.askable()
	if lane < 0 {
		return
	}
	l := p.lanes[lane].queue[at]
	p.lanes[lane].queue = slices.Delete(p.lanes[lane].queue, at, at+1)
	o.probing = true
	p.start(&run{lane: lane, letters: []*letter{l}, probe: true})
}

// askable returns where the best message to probe with is; lane is -1 where there is none. A pump
// that works once probes without pauses, so it probes with each message once, and gives up on a
// topic after a few failures.
func (p *pump) askable() (lane, at int) {
	o := &p.outage
	lane = -1
	var best *letter
	for i := range p.lanes {
		if p.lanes[i].busy {
			continue
		}
		for _, k := range p.lanes[i].firsts() {
			l := p.lanes[i].queue[k]
			if _, asked := o.letters[l.id]; p.once && (asked || o.failures[l.topic] >= tripAfter) {
				continue
			}
			if best == nil || o.prefers(l, best) {
				lane, at, best = i, k, l
			}
		}
	}
	return lane, at
}

// prefers reports whether a is the better probe.
func (o *brokerOutage) prefers(a, b *letter) bool {
	if one, other := o.topics[a.topic], o.topics[b.topic]; !one.Equal(other) {
		return one.Before(other)
	}
	return o.failed(a).Before(o.failed(b))
}

// failed returns when a letter last failed, zero for never.
func (o *brokerOutage) failed(l *letter) time.Time {
	if at, probed := o.letters[l.id]; probed {
		return at
	}
	return l.failedAt
}

// firsts returns the positions in the queue of letters that are the first of their keys.
func (l *line) firsts() []int {
	keys := make(map[int64]bool)
	var firsts []int
	for i, letter := range l.queue {
		if !letter.keyed || !keys[letter.hash] {
			firsts = append(firsts, i)
		}
		if letter.keyed {
			keys[letter.hash] = true
		}
	}
	return firsts
}

// makeRoom passes over messages of the topic that was probed last, once they fill the window, or
// leave no room in it for looks for keys: behind them may be messages of a topic that works. It
// postpones some at first, and twice as many with each further probe, so that a short outage
// rewrites little of a backlog, and a long one does not hide other topics.
func (p *pump) makeRoom(err error) {
	const patience = 3
	o := &p.outage
	if o.probes < patience || !p.crowded() && !p.crowdedByKeys() {
		return
	}
	window := max(min(2*p.config.Batch, len(p.window)), 1) // large messages fill it with few
	o.passes = min(max(4*window, 2*o.passes), 64*window)
	t := p.trouble[o.last]
	t.fail(time.Now(), err, &p.config)
	t.until, t.passes = t.suspects, o.passes
	p.trouble[o.last], p.resift = t, true
}

// stays reports whether l, whose topic is being passed over, is kept to probe with: a relay that
// has passed over everything could not tell when the outage is over.
func (p *pump) stays(l *letter) bool {
	o := &p.outage
	if !o.on || p.trouble[l.topic].passes == 0 {
		return false
	}
	id, some := o.kept[l.topic]
	if _, there := p.window[id]; some && there {
		return id == l.id
	}
	large := l.bytes > lookBytes/p.config.Batch
	if !some && (len(o.kept) >= p.config.Batch || large && len(o.kept) > 0) { // the rest of the window is for reading on
		return false
	}
	o.kept[l.topic] = l.id
	return true
}

// passed counts a message that was passed over.
func (p *pump) passed(topic string) {
	t := p.trouble[topic]
	switch t.passes {
	case 0:
		return
	case 1:
		t.until, t.suspects = time.Time{}, time.Time{} // enough
	}
	t.passes--
	p.trouble[topic] = t
}
