package outbox

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/millrace/internal/dialect"
)

// settle judges the results of a run. It sets failed letters aside or puts them back into the
// queue, and puts letters that were not tried back to its front.
func (p *pump) settle(ctx context.Context, r *run) {
	now := time.Now()
	lane := &p.lanes[r.lane]
	lane.busy, lane.run = false, nil
	if confirmed := p.confirm(ctx, r, now); confirmed > 0 {
		p.sent += confirmed
		if !p.outage.on || r.began.After(p.outage.began) { // an earlier run says nothing about the outage
			p.lastConfirm = now
			p.endOutage(ctx)
		}
	}
	p.diagnose(r, now)
	var back []*letter
	for i, l := range r.letters {
		switch f := r.fates[i]; {
		case f.sent():
		case !f.tried, p.waits(l), !p.judge(ctx, l, f.err, r, now):
			back = append(back, l)
		}
	}
	p.probed(r, now)
	lane.queue = append(back, lane.queue...)
	if p.resift { // only now: the letters that went back come before those in the queue
		p.resift = false
		p.siftAll()
	} else {
		p.sift(lane)
	}
	switch {
	case p.closing.Load():
		p.close()
	case p.owed != 0: // or else an outage would keep another relay from its shards
		p.dropQueued(func(l *letter) bool { return !p.keeps(l) })
	}
}

// confirm enters the sent letters into the ledger and returns how many there are.
func (p *pump) confirm(ctx context.Context, r *run, now time.Time) (confirmed int) {
	type tally struct {
		count  int
		oldest time.Time
	}
	topics := make(map[string]tally)
	for i, l := range r.letters {
		if !r.fates[i].sent() {
			continue
		}
		confirmed++
		p.ledger.sent = append(p.ledger.sent, l.row())
		delete(p.suspect, l.id)
		if b, blocked := p.blocked[l.hash]; l.head || blocked && b.head == l.id {
			p.ledger.release(l.hash)
		}
		t := topics[l.topic]
		if t.count == 0 || l.stored.Before(t.oldest) {
			t.oldest = l.stored
		}
		t.count++
		topics[l.topic] = t
	}
	for topic, t := range topics {
		delete(p.trouble, topic)
		e := Event{Topic: topic, Count: t.count, Latency: now.Sub(t.oldest), Duration: now.Sub(r.began)}
		p.tell(ctx, KindPublished, e)
	}
	return confirmed
}

// trouble is a topic that fails while others do not.
type trouble struct {
	until    time.Time // all its messages wait until then
	suspects time.Time // suspects wait until then: they may be the cause, and not the topic
	pause    int       // how many times it has failed
	err      error
	passes   int // if positive, how many more messages are to be passed over
}

// fail makes suspects wait, longer each time.
func (t *trouble) fail(now time.Time, err error, c *RelayConfig) {
	t.pause++
	t.suspects = now.Add(growing(t.pause, c.MinBackoff, min(c.MaxBackoff, time.Minute)))
	t.err = err
}

// lasts returns until when l waits.
func (t trouble) lasts(l *letter) time.Time {
	if l.suspect() && t.suspects.After(t.until) {
		return t.suspects
	}
	return t.until
}

// diagnose finds topics in trouble: nothing of them got through in a run, while other messages
// did.
func (p *pump) diagnose(r *run, now time.Time) {
	if !p.lastConfirm.After(r.began) {
		return
	}
	failures, fresh := make(map[string]int), make(map[string]int)
	var last error
	for i, l := range r.letters {
		switch f := r.fates[i]; {
		case f.sent():
			failures[l.topic] = -len(r.letters)
		case f.tried && !f.err.permanent:
			failures[l.topic]++
			last = f.err
			if !l.suspect() {
				fresh[l.topic]++
			}
		}
	}
	for topic, n := range failures {
		if n < tripAfter {
			continue
		}
		t := p.trouble[topic]
		t.fail(now, last, &p.config)
		if fresh[topic] >= tripAfter {
			t.until = t.suspects
		}
		p.trouble[topic] = t
		p.log.Error("outbox: a topic accepts no messages; the others go on", last,
			watermill.LogFields{"topic": topic, "again_in": t.suspects.Sub(now).String()})
		p.resift = true
	}
}

// judge decides what a failure of l means, and reports whether it set l aside. The failure counts
// as an attempt if it is permanent, or if the broker confirmed another message since l failed
// before or was set aside. Otherwise, if other messages get through, l is retried later; if none
// does, the broker may be out, and l stays in the queue.
func (p *pump) judge(ctx context.Context, l *letter, err *failure, r *run, now time.Time) (aside bool) {
	switch {
	case l.broken != nil:
		p.park(ctx, l, err)
		return true
	case err.permanent, p.othersPass(l, r):
		p.attempt(ctx, l, err, now)
		return true
	case p.lastConfirm.After(r.began):
		p.suspected(l, now)
		p.block(l)
		p.postpone([]*letter{l}, p.backoff(1), err)
		p.failed(ctx, l, "failed while others did not", err)
		return true
	}
	if l.failedAt.IsZero() {
		l.failedAt = now
	}
	p.suspected(l, l.failedAt)
	p.beginOutage(ctx, l, err, r, now)
	return false
}

// othersPass reports whether l fails while others get through.
func (p *pump) othersPass(l *letter, r *run) bool {
	return !p.outage.on &&
		(!l.failedAt.IsZero() && p.lastConfirm.After(l.failedAt) || l.again && p.lastConfirm.After(r.began))
}

// suspected remembers since when a letter fails.
func (p *pump) suspected(l *letter, since time.Time) {
	const most = 100_000
	if len(p.suspect) >= most { // each forgotten letter gets one more try
		clear(p.suspect)
	}
	p.suspect[l.id] = since
}

// attempt spends an attempt of l, and parks l after the last.
func (p *pump) attempt(ctx context.Context, l *letter, err error, now time.Time) {
	l.attempts++
	p.suspected(l, now)
	if most := p.config.MaxAttempts; most != Unlimited && l.attempts >= most {
		p.park(ctx, l, err)
		return
	}
	p.block(l)
	delay := p.backoff(l.attempts)
	p.ledger.aside = append(p.ledger.aside, dialect.Aside{
		ID: l.id, StoredAt: l.at, Status: dialect.OutboxRetry, Delay: delay.Microseconds(), Attempts: l.attempts, Error: text(err),
		Blocks: l.blocks(),
	})
	p.failed(ctx, l, "attempt failed", err)
}

// blocks is the key that l blocks, nil if it has none.
func (l *letter) blocks() *int64 {
	if !l.keyed {
		return nil
	}
	return &l.hash
}

// park sets l aside for an operator.
func (p *pump) park(ctx context.Context, l *letter, err error) {
	blocks := l.blocks()
	if p.config.OnParked == Continue {
		blocks = nil
		if b, blocked := p.blocked[l.hash]; l.head || blocked && b.head == l.id {
			p.ledger.release(l.hash)
		}
	} else {
		p.block(l)
	}
	delete(p.suspect, l.id)
	p.ledger.aside = append(p.ledger.aside, dialect.Aside{
		ID: l.id, StoredAt: l.at, Status: dialect.OutboxParked, Attempts: l.attempts, Error: text(err), Blocks: blocks,
	})
	p.fail(fmt.Errorf("message %q to topic %q is parked: %w", l.msg.UUID, l.topic, err))
	p.log.Error("outbox: message parked for an operator", err, l.fields())
	p.tell(ctx, KindParked, l.event("", err))
}

// failed reports a letter that will be retried.
func (p *pump) failed(ctx context.Context, l *letter, reason string, err error) {
	p.log.Info("outbox: a message could not be sent; retrying later",
		l.fields().Add(watermill.LogFields{"reason": reason, "error": err.Error()}))
	e := l.event(reason, err)
	p.fail(fmt.Errorf("message %q to topic %q: %w", l.msg.UUID, l.topic, err))
	p.tell(ctx, KindAttempt, e)
}

// backoff is the pause after the n-th attempt: full jitter under a bound that doubles, but never
// so short that two attempts amount to one.
func (p *pump) backoff(n int) time.Duration {
	bound := p.config.MinBackoff << min(n-1, 30)
	if bound <= 0 || bound > p.config.MaxBackoff {
		bound = p.config.MaxBackoff
	}
	return max(rand.N(bound), p.config.MinBackoff/4) //nolint:gosec // jitter needs no secrecy
}
