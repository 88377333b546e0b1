package durable_test

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/process"
)

// Points beside those of package process, which have to do with the handler.
const (
	beforeStore  process.Point = "before storing"
	midStore     process.Point = "before the commit of storing"
	afterStore   process.Point = "after storing, before the broker's ack"
	beforeLease  process.Point = "after the broker's ack, before leasing"
	midLease     process.Point = "before the commit of leasing"
	afterLease   process.Point = "after leasing"
	midHandOut   process.Point = "before the commit of handing out"
	afterHandOut process.Point = "after handing out"
	beforeAnswer process.Point = "before the answer is recorded"
	midAnswer    process.Point = "before the commit of the answer"
	afterAnswer  process.Point = "after the answer is recorded"
)

// kind is what a transaction of the queue's is for.
type kind int

const (
	storing kind = iota + 1
	leasing
	handingOut
	answering
)

func kindsOf(call string) []kind {
	switch {
	case strings.Contains(call, "INTO millrace_messages"):
		return []kind{storing}
	case strings.Contains(call, "attempts = attempts +"):
		return []kind{leasing}
	case strings.Contains(call, "ELSE 2 END, lease_token"): // both in one
		return []kind{leasing, handingOut}
	case strings.Contains(call, "SET status = 2, due_at"):
		return []kind{handingOut}
	case strings.Contains(call, "DELETE FROM millrace_messages"),
		strings.Contains(call, "UPDATE millrace_messages") && strings.Contains(call, "lease_token = 0"),
		strings.Contains(call, "DELETE FROM millrace_outcomes"), strings.Contains(call, "INTO millrace_claims"):
		return []kind{answering}
	}
	return nil
}

// messageKey finds the UUID of the message in the context of what is done for its handler.
type messageKey struct{}

// know puts the UUID there, and tells how it ended.
func (p *servedProcess) know(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		defer msg.SetContext(ctx)
		msg.SetContext(context.WithValue(ctx, messageKey{}, msg.UUID))
		out, err := next(msg)
		if p.Weigh == 0 {
			e := process.Event{Kind: returned, UUID: msg.UUID}
			if err != nil {
				e.Error = err.Error()
			}
			p.Say(e)
		}
		return out, err
	}
}

func (p *servedProcess) before(ctx context.Context, call string) error {
	if ctx.Value(messageKey{}) != nil {
		switch call {
		case faults.Begin:
			p.reach(ctx, process.BeforeClaim)
		case faults.Commit:
			p.reach(ctx, process.BeforeCommit)
		}
		return nil
	}
	if call == faults.Begin {
		p.kindsIn(ctx, []kind{})
		return nil
	}
	if call == faults.Commit {
		p.stopIn(p.kindsIn(ctx, nil), map[kind]process.Point{
			storing: midStore, leasing: midLease, handingOut: midHandOut, answering: midAnswer,
		})
		return nil
	}
	if strings.Contains(call, "SELECT due_at -") { // asked before anything is leased
		p.awaitAck()
	}
	if kinds := kindsOf(call); kinds != nil {
		p.kindsIn(ctx, kinds)
		p.stopIn(kinds, map[kind]process.Point{storing: beforeStore, leasing: beforeLease, answering: beforeAnswer})
	}
	return nil
}

func (p *servedProcess) after(ctx context.Context, call string) error {
	switch {
	case call != faults.Commit:
	case ctx.Value(messageKey{}) != nil:
		p.reach(ctx, process.AfterCommit)
	default:
		p.stopIn(p.kindsIn(ctx, nil), map[kind]process.Point{
			storing: afterStore, leasing: afterLease, handingOut: afterHandOut, answering: afterAnswer,
		})
	}
	return nil
}

// kindsIn returns what the transaction of ctx is for, and notes it where it is known now.
func (p *servedProcess) kindsIn(ctx context.Context, known []kind) []kind {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known != nil {
		p.kinds[faults.Connection(ctx)] = known
	}
	return p.kinds[faults.Connection(ctx)]
}

// stopIn stops where one of the points of a transaction is the one to stop at.
func (p *servedProcess) stopIn(kinds []kind, points map[kind]process.Point) {
	for _, k := range kinds {
		p.stopAt(points[k])
	}
}

// awaitAck waits, where the process is to stop before it leases, until the broker has the
// ack of the victim.
func (p *servedProcess) awaitAck() {
	p.mu.Lock()
	msg := p.handed[p.victim]
	if p.armed != beforeLease {
		msg = nil
	}
	p.mu.Unlock()
	if msg != nil {
		<-msg.Acked()
	}
}

// reach stops where the message of ctx is the victim, and point where it is to stop.
func (p *servedProcess) reach(ctx context.Context, point process.Point) {
	if uuid, ok := ctx.Value(messageKey{}).(string); ok {
		p.reachFor(uuid, point)
	}
}

func (p *servedProcess) reachFor(uuid string, point process.Point) {
	p.mu.Lock()
	here := p.victim == uuid
	p.mu.Unlock()
	if here {
		p.stopAt(point)
	}
}

// stopAt stops where point is the one to stop at, until the test says to go on.
func (p *servedProcess) stopAt(point process.Point) {
	p.mu.Lock()
	here := point != "" && p.armed == point
	uuid := p.victim
	if here {
		p.armed = ""
	}
	p.mu.Unlock()
	if here {
		p.Say(process.Event{Kind: process.At, Point: point, UUID: uuid})
		<-p.goOn
	}
}

// redelivered is how watermill-amqp marks what was delivered before.
const redelivered = "_watermill_amqp_redelivered"

// deliver hands over a message of the test's, and tells what became of it.
func (p *servedProcess) deliver(d process.Delivery) {
	msg := d.Copy()
	p.mu.Lock()
	p.handed[d.UUID] = msg
	if d.Stop != "" {
		p.armed, p.victim = d.Stop, d.UUID
	}
	p.mu.Unlock()
	go p.Hand(msg, p.feed.Give)
}

// lanes is a subscriber with messages of its own, as a broker with partitions has them: in
// each the next one comes when the last one was acked, and a nacked one again.
type lanes struct{ *servedProcess }

func (p lanes) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	out := make(chan *message.Message)
	var all sync.WaitGroup
	for lane := range p.Lanes {
		all.Go(func() { p.run(ctx, fmt.Sprintf("%s lane %d", p.Name, lane), out) })
	}
	go func() {
		all.Wait()
		if ctx.Err() == nil {
			p.Say(process.Event{Kind: drained})
		}
		<-ctx.Done()
		close(out)
	}()
	return out, nil
}

func (p lanes) run(ctx context.Context, lane string, out chan<- *message.Message) {
	for n := 0; n < p.Length; {
		msg := message.NewMessage(fmt.Sprintf("%s at %d", lane, n), []byte("payload"))
		msg.Metadata.Set("key", lane)
		msg.SetContext(ctx)
		select {
		case out <- msg:
		case <-ctx.Done():
			return
		}
		select {
		case <-msg.Acked():
			n++
		case <-msg.Nacked():
		case <-ctx.Done():
			return
		}
	}
}

func (lanes) Close() error { return nil }
