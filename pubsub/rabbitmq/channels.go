package rabbitmq

import (
	"context"
	"fmt"
	"sync"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// channel is a channel in confirm mode.
//
// amqp091's reader, which serves the whole connection, blocks on a full Go channel. So the one for
// returns has room for the window: no more messages are ever unconfirmed.
//
// Confirms are read from each message's own [amqp091.DeferredConfirmation]. NotifyPublish would
// be wrong: there an ack of several messages overrides an earlier nack of one of them.
type channel struct {
	*amqp091.Channel
	session *session
	returns chan amqp091.Return // each is in it before the confirm of its message is done
	closed  chan *amqp091.Error
}

func openChannel(s *session, window int) (*channel, error) {
	opened, err := s.Channel()
	if err != nil {
		return nil, fmt.Errorf("open a channel: %w", err)
	}
	ch := &channel{
		Channel: opened, session: s,
		returns: opened.NotifyReturn(make(chan amqp091.Return, window)),
		closed:  opened.NotifyClose(make(chan *amqp091.Error, 1)),
	}
	if err := opened.Confirm(false); err != nil {
		ch.discard()
		return nil, fmt.Errorf("ask for confirms: %w", err)
	}
	return ch, nil
}

// reason waits until ch, which amqp091 has marked as closed, says why.
func (ch *channel) reason(ctx context.Context) error {
	select {
	case err := <-ch.closed:
		if err != nil {
			return err
		}
	case <-ctx.Done():
	}
	return amqp091.ErrClosed
}

// discard closes ch in the background: RabbitMQ may not answer.
func (ch *channel) discard() {
	go func() { _ = ch.Close() }()
}

// pool lends channels, each to one call at a time.
type pool struct {
	source source
	window int
	lent   chan struct{} // holds one entry per channel in use

	mu     sync.Mutex
	idle   []*channel
	closed bool
}

// take returns an idle channel, or opens one. It waits while too many are in use, but not for a
// connection.
func (p *pool) take(ctx context.Context) (*channel, error) {
	if _, err := p.source.current(); err != nil {
		return nil, err
	}
	select {
	case p.lent <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: all %d channels are in use (Publish.ChannelPoolSize)", ErrUnconfirmed, cap(p.lent))
	}
	ch, err := p.reuse()
	if err != nil {
		<-p.lent
	}
	return ch, err
}

func (p *pool) reuse() (*channel, error) {
	p.mu.Lock()
	for len(p.idle) > 0 {
		ch := p.idle[len(p.idle)-1]
		p.idle = p.idle[:len(p.idle)-1]
		if !ch.IsClosed() {
			p.mu.Unlock()
			return ch, nil
		}
	}
	p.mu.Unlock()
	s, err := p.source.current()
	if err != nil {
		return nil, err
	}
	ch, err := openChannel(s, p.window)
	return ch, s.lossIn(err)
}

// empty discards the idle channels. After a refusal they may be of no use: a channel of RabbitMQ 3.10
// sends to the leader that a quorum queue had when the channel first published to it, and refuses
// messages for as long as that node is cut off.
func (p *pool) empty() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, ch := range p.idle {
		ch.discard()
	}
	p.idle = nil
}

// give takes ch back. It discards a channel with unconfirmed or refused messages.
func (p *pool) give(ch *channel, settled bool) {
	defer func() { <-p.lent }()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !settled || p.closed || ch.IsClosed() {
		ch.discard()
		return
	}
	p.idle = append(p.idle, ch)
}

// close closes the idle channels: the connection may be shared, and live on.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.empty()
}
