package durable_test

import (
	"context"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/tests/process"
)

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
