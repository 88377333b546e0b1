package rig

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
)

// Feed is a subscriber that the test feeds. It redelivers nothing by itself.
type Feed struct {
	out       chan *message.Message
	closed    chan struct{}
	closeOnce sync.Once
}

// NewFeed returns a Feed.
func NewFeed() *Feed { return &Feed{out: make(chan *message.Message), closed: make(chan struct{})} }

// Subscribe delivers the messages that are sent, until ctx ends or the Feed is closed.
func (f *Feed) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	out := make(chan *message.Message)
	go func() {
		defer close(out)
		for {
			select {
			case msg := <-f.out:
				msg.SetContext(ctx)
				select {
				case out <- msg:
				case <-ctx.Done():
					return
				}
			case <-ctx.Done():
				return
			case <-f.closed:
				return
			}
		}
	}()
	return out, nil
}

// Send hands msg to a subscription.
func (f *Feed) Send(t testing.TB, msg *message.Message) {
	t.Helper()
	select {
	case f.out <- msg:
	case <-time.After(Patience):
		require.Fail(t, "no subscription takes the message")
	}
}

// Give is [Feed.Send] without a test: it waits until a subscription takes msg.
func (f *Feed) Give(msg *message.Message) { f.out <- msg }

// Answer waits for the answer to msg and reports whether it is an ack.
func Answer(t testing.TB, msg *message.Message) (acked bool) {
	t.Helper()
	select {
	case <-msg.Acked():
		return true
	case <-msg.Nacked():
		return false
	case <-time.After(Patience):
		require.Fail(t, "the message was neither acked nor nacked")
		return false
	}
}

// Close ends the subscriptions.
func (f *Feed) Close() error {
	f.closeOnce.Do(func() { close(f.closed) })
	return nil
}

// Publisher keeps copies of the published messages, and fails on demand. The zero value is ready
// to use.
type Publisher struct {
	mu   sync.Mutex
	sent []*message.Message
	fail error
}

// Publish keeps copies of msgs, or fails.
func (p *Publisher) Publish(_ string, msgs ...*message.Message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fail != nil {
		return p.fail
	}
	for _, m := range msgs {
		p.sent = append(p.sent, m.Copy())
	}
	return nil
}

// FailWith makes Publish fail with err, or succeed if err is nil.
func (p *Publisher) FailWith(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fail = err
}

// Messages returns the published messages.
func (p *Publisher) Messages() []*message.Message {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]*message.Message{}, p.sent...)
}

// Close does nothing.
func (*Publisher) Close() error { return nil }
