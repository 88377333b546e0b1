package outbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// pump moves messages from the table through the lanes to the broker, for one lease. The
// goroutine of [pump.work] owns all of its state; others read, publish and write, and report
// through channels.
type pump struct {
	*Relay
	lease *lease
	once  bool // stop when there is nothing left to do

	shards   shardSet          // those that may be read
	assigned bool              // the keeper has said which
	blocked  map[int64]block   // keys with a head
	owed     int               // number of the order that the keeper waits for; 0 for none
	turns    map[int64]*turn   // keys with messages in hand, or with more in the table
	asks     []int64           // keys to look for
	toAsk    []int64           // blocked keys whose heads are yet to be checked
	window   map[int64]*letter // letters in hand
	bytes    int               // of all of them
	drawn    int               // how many of them looks for keys found
	lanes    []line
	ledger   *ledger // results of letters that are not in the table yet
	outage   brokerOutage
	closing  atomic.Bool         // no more letters are taken in hand
	trouble  map[string]trouble  // by topic
	resift   bool                // a topic got into trouble, so the queues must be sifted
	suspect  map[int64]time.Time // since when letters fail, by id

	lastConfirm time.Time
	sent        int
	failure     error // the first, for RelayBatch
	beaten      bool  // the outbox was out of reach for Config.Drain: RelayBatch gives up
	cutOff      bool  // results came too late for the table: the lease had ended

	reader  reader
	flusher flusher
	results chan *run
	running sync.WaitGroup // lanes
	drained time.Time      // when it stops waiting for messages on their way
}

// line is a lane and its queue.
type line struct {
	queue []*letter
	busy  bool
	run   *run // the one on its way, where busy
	runs  chan *run

	lane    *lane
	overdue *publishCall // the last that was logged
}

func newPump(r *Relay, l *lease, once bool) *pump {
	p := &pump{
		Relay: r, lease: l, once: once,
		blocked: make(map[int64]block),
		turns:   make(map[int64]*turn),
		window:  make(map[int64]*letter),
		lanes:   make([]line, r.config.Lanes),
		ledger:  newLedger(1),
		trouble: make(map[string]trouble),
		suspect: make(map[int64]time.Time),
		reader:  newReader(),
		flusher: flusher{done: make(chan *flush, 1)},
		results: make(chan *run, r.config.Lanes),
	}
	for i := range p.lanes {
		p.lanes[i].runs = make(chan *run, 1)
		lane := &lane{outside: r.outside, to: r.to, may: p.maySend, burst: r.config.KeyBurst}
		p.lanes[i].lane = lane
		runs := p.lanes[i].runs
		p.running.Go(func() {
			for run := range runs {
				lane.publish(run)
				p.results <- run // it has room for one of each lane
			}
		})
	}
	return p
}

// work pumps until ctx ends, the lease is lost or, with once, nothing is left or can be done. It
// then waits for messages on their way to the broker, for Config.Drain at most, also after a panic.
func (p *pump) work(ctx context.Context, k *keeper, lost <-chan error, rings <-chan struct{}) error {
	defer p.disown(context.WithoutCancel(ctx))
	defer p.end()
	timer := time.NewTimer(0)
	defer timer.Stop()
	stop, drained, told := ctx.Done(), (<-chan time.Time)(nil), ctx.Err
	ctx = context.WithoutCancel(ctx)
	defer p.leaveOutage(ctx)
	drain := func() {
		stop, drained = nil, time.After(p.config.Drain)
		p.drained = time.Now().Add(p.config.Drain)
		p.close()
	}
	for {
		if p.beaten && drained == nil {
			drain()
		}
		p.dispatch()
		p.read(ctx)
		p.flush(ctx)
		p.sayOverdue(time.Now())
		switch {
		case p.closing.Load() && p.idle(), p.once && p.finished():
			return p.result(told())
		case p.flusher.beaten && p.lanesIdle():
			return p.withFailure(errDrain)
		}
		timer.Reset(time.Until(p.nextAlarm()))
		select {
		case <-stop:
			drain()
		case <-drained:
			return p.withFailure(errDrain)
		case err := <-lost:
			if p.close(); p.cutOff || !p.idle() {
				err = fmt.Errorf("%w: %w", err, errCutOff)
			}
			return err
		case o := <-k.changes:
			p.owed = o.number
			p.assign(ctx, o.shards)
		case r := <-p.reader.done:
			p.took(r)
		case r := <-p.results:
			p.settle(ctx, r)
		case f := <-p.flusher.done:
			p.flushed(f)
		case <-rings:
			p.reader.rung()
		case <-timer.C:
		}
		p.release(k)
		k.broker.Store(p.outage.shown)
	}
}

// end stops sending and waits for messages on their way: the next owner of the shards would send
// them again, and later messages of a key before an earlier one that is still with the broker.
func (p *pump) end() {
	p.closing.Store(true)
	for i := range p.lanes {
		close(p.lanes[i].runs)
	}
	if p.drained.IsZero() {
		p.drained = time.Now().Add(p.config.Drain)
	}
	late := time.NewTimer(time.Until(p.drained))
	defer late.Stop()
	if p.reader.busy {
		p.reader.stop()
	}
	ended := make(chan struct{})
	go func() { p.running.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-late.C:
		return
	}
	if p.flusher.busy && p.lease.valid() { // a write after the lease changes nothing
		select {
		case <-p.flusher.done:
		case <-late.C:
			return
		}
	}
	if p.reader.busy {
		select {
		case <-p.reader.done:
			p.reader.busy = false
		case <-late.C:
		}
	}
}

// errDrain says that a relay had to stop before it knew the result of every message on its way.
var errDrain = errors.New("the broker did not confirm, or the database did not record, every message on its way " +
	"within Drain: they will be sent again, with the same UUIDs")

// result is what a pump returns that has nothing in hand. It may have been told to end.
func (p *pump) result(told error) error {
	switch {
	case p.cutOff:
		return p.withFailure(fmt.Errorf("%w: %w", errLeaseLost, errCutOff))
	case p.once && told != nil && !p.finished():
		return p.withFailure(told)
	}
	return p.failure
}

// withFailure returns err and, for RelayBatch, the first failure.
func (p *pump) withFailure(err error) error {
	if p.failure == nil {
		return err
	}
	return fmt.Errorf("%w: %w", err, p.failure)
}

// beats reports whether something has failed for so long that RelayBatch gives up. It notes in
// since when that began.
func (p *pump) beats(since *time.Time, now time.Time) bool {
	if since.IsZero() {
		*since = now
	}
	over := p.once && now.Sub(*since) >= p.config.Drain
	p.beaten = p.beaten || over
	return over
}

// maySend reports whether a lane may send: no other relay can own its shards, and nobody told
// this one to stop.
func (p *pump) maySend() bool {
	return p.lease.valid() && !p.lease.doubtful() && !p.closing.Load()
}

// close takes no more letters in hand, and drops those that are not on their way.
func (p *pump) close() {
	p.closing.Store(true)
	p.dropQueued(func(*letter) bool { return true })
}

// idle reports whether nothing is in hand.
func (p *pump) idle() bool { return len(p.window) == 0 && p.written() }

// written reports whether the table has the results of all letters.
func (p *pump) written() bool {
	return p.ledger.empty() && !p.flusher.busy && p.flusher.failed == nil
}

// finished reports whether a pump that works once has nothing left to do.
func (p *pump) finished() bool {
	if p.outage.on {
		lane, _ := p.askable()
		return lane < 0 && p.lanesIdle() && p.written() && !p.reader.busy &&
			(p.cannotTake() || p.reader.seen && p.crowdedByKeys())
	}
	return p.idle() && !p.reader.busy && p.assigned &&
		(p.shards == 0 || p.reader.exhausted && len(p.asks) == 0)
}

func (p *pump) lanesIdle() bool {
	for i := range p.lanes {
		if p.lanes[i].busy {
			return false
		}
	}
	return true
}

// nextAlarm is when the pump has something to do although no channel wakes it. Work that is due
// but was not done just now waits for something else, and must not keep the pump spinning.
func (p *pump) nextAlarm() time.Time {
	now := time.Now()
	alarm := now.Add(sweepEvery)
	sooner := func(at time.Time) {
		if at.Before(now) {
			at = now.Add(sweepEvery / 20)
		}
		if at.Before(alarm) {
			alarm = at
		}
	}
	p.reader.alarms(p, sooner)
	if p.outage.on && !p.outage.probing {
		sooner(p.outage.probeAt)
	}
	if p.flusher.failures > 0 && !p.flusher.busy {
		sooner(p.flusher.retryAt)
	}
	return alarm
}

// assign follows an order of the keeper. It drops queued letters of shards that the relay gives
// up, and has new shards read from the start.
func (p *pump) assign(ctx context.Context, shards shardSet) {
	if p.assigned && shards == p.shards {
		return
	}
	p.assigned, p.shards = true, shards
	p.reader.epoch++
	p.reader.walk.restart()
	p.reader.sweepAt, p.reader.seen, p.reader.exhausted, p.reader.dueDone = time.Time{}, false, false, false
	p.reader.dueAt = time.Now()
	p.shares.Store(shards != allShards)
	p.dropQueued(func(l *letter) bool { return !p.keeps(l) })
	maps.DeleteFunc(p.turns, func(key int64, _ *turn) bool { return !shards.owns(key) })
	p.log.Info("outbox: the relay's share changed", watermill.LogFields{"shards": shards.size(), "of": shardCount})
	p.tell(ctx, KindShards, Event{Count: shards.size()})
}

// disown tells observers that the relay has no shards any more.
func (p *pump) disown(ctx context.Context) {
	if p.assigned {
		p.tell(ctx, KindShards, Event{})
	}
}

// keeps reports whether a letter is of a shard that the relay keeps.
func (p *pump) keeps(l *letter) bool { return p.shards.owns(l.hash) }

// release tells the keeper once no letter of a shard to give up is in hand.
func (p *pump) release(k *keeper) {
	if p.owed == 0 {
		return
	}
	for _, l := range p.window {
		if !p.keeps(l) {
			return
		}
	}
	maps.DeleteFunc(p.blocked, func(key int64, _ block) bool { return !p.shards.owns(key) })
	select {
	case <-k.given:
	default:
	}
	k.given <- order{p.shards, p.owed}
	p.owed = 0
}

// dropQueued lets go of queued letters; they stay as they are in the table.
func (p *pump) dropQueued(which func(*letter) bool) {
	for i := range p.lanes {
		kept := p.lanes[i].queue[:0]
		for _, l := range p.lanes[i].queue {
			if which(l) {
				p.letGo(l.id)
			} else {
				kept = append(kept, l)
			}
		}
		clear(p.lanes[i].queue[len(kept):])
		p.lanes[i].queue = kept
	}
}
