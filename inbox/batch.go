package inbox

import (
	"context"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/batching"
	"github.com/millrace-go/millrace/internal/stored"
	"github.com/millrace-go/millrace/internal/turns"
)

// BatchHandler returns a function that returns h as the handler of the consumer that a config names. What is in
// flight at once is claimed in one transaction, in which h runs, and which is committed if h succeeds. A message
// that cannot join a batch is handled as by [Store.Handler], and h gets it alone. Configs of one consumer share its
// batches: a stored message may not know its handler. middleware.Batch calls it.
func (i Internals) BatchHandler(
	limits batching.Limits, order *GateConfig, h batchFunc,
) func(ConsumerConfig) (message.HandlerFunc, error) {
	known := make(map[stored.Name]*batches)
	return func(config ConsumerConfig) (message.HandlerFunc, error) {
		g, err := gated(order)
		if err != nil {
			return nil, err
		}
		c, err := i.store.consumer(config)
		if err != nil {
			return nil, err
		}
		i.store.mu.Lock()
		defer i.store.mu.Unlock()
		b := known[c.name()]
		if b == nil {
			b = &batches{consumer: c, limits: limits, handler: h, gate: g, inserts: make(map[int]string)}
			known[c.name()] = b
		}
		c.gate.Store(b.gate)
		c.batches = b
		return b.handle, nil
	}
}

type batchFunc = func(ctx context.Context, msgs []*message.Message) ([]*message.Message, error)

// batches are the batches of a consumer. Only one runs at a time.
type batches struct {
	consumer *claimConsumer
	limits   batching.Limits
	handler  batchFunc
	gate     *gate          // nil if messages have no order
	inserts  map[int]string // the statement that claims so many keys; only the leader uses it
	holdings int            // batches that have held messages; only the leader uses it

	gathering
}

// handle handles one delivery, in the goroutine that brings it. It restores the message's context on every exit.
func (b *batches) handle(msg *message.Message) ([]*message.Message, error) {
	ctx := msg.Context()
	defer msg.SetContext(ctx)
	m := b.admit(msg)
	if m == nil {
		return b.consumer.handle(msg, b.alone)
	}
	defer m.release()
	m.delivery.observe(KindReceived, "received", nil)
	exit := func() {}
	if m.delivery.lease == nil {
		b.consumer.early.enter()
		exit = sync.OnceFunc(b.consumer.early.exit)
	}
	defer exit()
	end, err := b.gather(m)
	defer m.freeLead()
	msg.SetContext(ctx)
	if m.gap != nil && (end == endedCommitted || end == endedAside) {
		b.consumer.store.observeGap(m.delivery, m.gap)
	}
	switch end {
	case endedCommitted:
		m.held = false
		m.claim.succeed(nil, false)
		return nil, nil
	case endedAside:
		m.held = false
		m.claim.wentAside()
		return nil, nil
	case endedFailed:
		m.held = false
		defer m.undone() // an observer may panic
		return nil, m.claim.Rollback(err)
	case endedLeft:
		m.delivery.interrupted(err)
		return nil, m.delivery.fail(err)
	}
	m.release()
	exit()
	return b.consumer.handleOn(&visit{told: true}, msg, b.alone)
}

// member is a delivery that joins a batch. It holds the turn of its key, so that copies in this process wait.
type member struct {
	delivery *delivery
	made     time.Time // at the earliest, if mayBeOld is set
	mayBeOld bool      // it says when it was made, and has no claim yet
	version  versioned // with a gate
	gap      error     // before it, in the last transaction that it was in
	claim    *claim    // in the last transaction that it was in
	turn     turns.Turn
	held     bool   // it must free its turn
	undone   func() // to be called once its claim is taken back, if it is told endedFailed
	gathered
}

// release frees what m holds since it was admitted, once.
func (m *member) release() {
	if !m.held {
		return
	}
	m.held = false
	m.turn.Fail()
	m.delivery.consumer.store.work.leave()
}

// admit returns msg as a member for the next batch. It returns nil if the message cannot be in a batch, or
// probably was handled before: then it is claimed by itself.
func (b *batches) admit(msg *message.Message) *member {
	c := b.consumer
	s := c.store
	d, err := c.readDelivery(msg)
	if err != nil || !d.plain() {
		return nil
	}
	if _, known := s.settled.Get(d.memoryKey); known {
		return nil
	}
	m := &member{delivery: d}
	if d.lease == nil || !d.lease.claimed() {
		m.made, m.mayBeOld = d.surelyMade()
	}
	if !b.place(m) {
		return nil
	}
	turn, taken := s.turns.Try(d.memoryKey)
	if !taken { // by a copy
		return nil
	}
	if !s.work.enter() {
		turn.Fail()
		return nil
	}
	s.warnUnattended()
	m.turn, m.held = turn, true
	m.said, m.size, m.arrived = make(chan said, 1), len(msg.Payload), time.Now()
	return m
}

// plain reports whether d is a first delivery, as far as the message itself and its queue say.
func (d *delivery) plain() bool {
	c := d.consumer
	if within, _ := d.nested(); within || d.ctx.Err() != nil {
		return false
	}
	attended := c.store.config.WithoutPlugin || !d.routed() || d.ctx.Value(attended{}) != nil
	return attended && (d.lease == nil || d.lease.untried() || d.released()) && d.keyless.text == "" && !d.replayed && c.former == nil && c.config.Before == nil &&
		c.config.OnBegin == nil && !c.config.Redelivered(d.msg) && !c.reread.likely()
}

// released reports whether the queue delivers d for the first time since its predecessor was applied.
func (d *delivery) released() bool {
	row := &d.lease.row
	return d.consumer.batches.gate != nil && row.Aggregate != nil && row.Attempts == 0 && row.Status != stored.Settling && !d.lease.suspect
}
