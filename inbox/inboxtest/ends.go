package inboxtest

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
)

// subscriber is the subscriber of one process and group.
type subscriber struct {
	process *Process
	group   string
}

// Subscribe hands out the messages of the topic that no process of the group has acked.
func (s subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if s.process.dead() {
		return nil, errDead
	}
	out := make(chan *message.Message)
	n := queueName{topic, s.group}
	s.process.play.broker.open(n)
	s.process.running.Go(func() {
		defer close(out)
		var handlers sync.WaitGroup
		defer handlers.Wait()
		for {
			d, err := s.process.play.broker.next(ctx, s.process, n)
			if err != nil {
				return
			}
			handlers.Go(func() { s.process.hand(ctx, out, n, d) })
		}
	})
	return out, nil
}

// Close does nothing: processes are closed as a whole.
func (subscriber) Close() error { return nil }

// hand delivers a message and passes the answer to the broker.
func (p *Process) hand(ctx context.Context, out chan<- *message.Message, n queueName, d *delivery) {
	b, l := p.play.broker, d.letter
	ctx, cancel := context.WithCancel(context.WithValue(ctx, deliveryKey{}, d))
	defer cancel()
	defer context.AfterFunc(p.life, cancel)() //nolint:contextcheck // the process's
	msg := l.msg.Copy()
	msg.SetContext(ctx)
	d.msg = msg
	b.mu.Lock()
	l.now = msg
	b.mu.Unlock()
	select {
	case out <- msg:
		p.play.note(p, "%s is delivered, for the %s time", l.name, ordinal(d.try))
	case <-ctx.Done():
		b.refused(p, n, l)
		return
	}
	acked := false
	select {
	case <-msg.Acked():
		acked = true
	case <-msg.Nacked():
	case <-p.gone: // the broker takes the message back
		return
	}
	what := "NACK"
	if acked {
		what = "ACK"
	}
	now, err := p.begin(ctx, call{kind: answer, what: what}, nil)
	if err == nil && acked {
		b.acked(p, n, l) // even if the process gets an error
		_ = now.end(ctx, nil)
		return
	}
	if !errors.Is(err, errDead) {
		b.refused(p, n, l)
	}
	if now != nil {
		_ = now.end(ctx, nil)
	}
}

func ordinal(n int) string {
	switch n {
	case 1:
		return "1st"
	case 2:
		return "2nd"
	case 3:
		return "3rd"
	default:
		return fmt.Sprintf("%dth", n)
	}
}

// publisher is the publisher of one process.
type publisher struct{ process *Process }

// Publish returns once the broker has the messages.
func (p publisher) Publish(topic string, messages ...*message.Message) error {
	stack := callers()
	p.process.wiring.published(topic, messages, stack)
	for _, msg := range messages {
		now, err := p.process.begin(msg.Context(), call{kind: publish, what: "PUBLISH " + topic}, stack)
		if err != nil {
			return err
		}
		p.process.play.broker.confirm(topic, msg)
		if err := now.end(msg.Context(), nil); err != nil {
			return err
		}
	}
	return nil
}

// Close does nothing: processes are closed as a whole.
func (publisher) Close() error { return nil }
