package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// link keeps one connection and makes a new one when it is lost.
//
// It replaces amqp.ConnectionWrapper, which changes without a lock what its IsConnected, Connected
// and Connection read, and waits up to a minute between two attempts.
type link struct {
	config  amqp.ConnectionConfig
	logger  watermill.LoggerAdapter
	closing chan struct{}

	mu      sync.Mutex
	session *session      // nil while there is none
	why     error         // why there is none
	changed chan struct{} // closed when session changes
	closed  bool
}

// newLink connects.
func newLink(config amqp.ConnectionConfig, logger watermill.LoggerAdapter) (*link, error) {
	s, err := dial(config)
	if err != nil {
		return nil, err
	}
	l := &link{
		config: config, logger: logger, closing: make(chan struct{}),
		session: s, changed: make(chan struct{}),
	}
	go l.keep(s)
	return l, nil
}

// current returns the connection, or at once an error that is [ErrNotConnected].
func (l *link) current() (*session, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return nil, ErrClosed
	case l.session == nil:
		return nil, fmt.Errorf("%w: %w", ErrNotConnected, l.why)
	case l.session.IsClosed(): // keep has not noticed yet
		return nil, fmt.Errorf("%w: the connection was lost", ErrNotConnected)
	}
	return l.session, nil
}

// await waits for a connection and returns it.
func (l *link) await(ctx context.Context) (*session, error) {
	for {
		l.mu.Lock()
		s, changed := l.session, l.changed
		l.mu.Unlock()
		if s != nil && !s.IsClosed() {
			return s, nil
		}
		select {
		case <-changed:
		case <-l.closing:
			return nil, ErrClosed
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// close ends the connection. Nothing may be in flight any more.
func (l *link) close() error {
	l.mu.Lock()
	s := l.session
	l.session, l.closed = nil, true
	close(l.closing)
	l.mu.Unlock()
	if s == nil {
		return nil
	}
	return s.end()
}

// sever breaks the connection, so that everything that waits for it ends.
func (l *link) sever() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.session != nil {
		l.session.sever()
	}
}

// keep replaces s when it is lost, and then its successors.
func (l *link) keep(s *session) {
	for s != nil {
		lost := s.NotifyClose(make(chan *amqp091.Error, 1))
		select {
		case <-l.closing:
			return
		case reason := <-lost:
			s.sever() // amqp091 waits for a blocked writer before it closes the socket
			s = l.replace(reason)
		}
	}
}

func (l *link) replace(reason *amqp091.Error) *session {
	err := errors.New("the connection was closed")
	if reason != nil {
		err = reason
	}
	l.logger.Error("Lost the connection to RabbitMQ", err, nil)
	if !l.set(nil, err) {
		return nil
	}
	s := l.redial()
	if s == nil {
		return nil
	}
	if !l.set(s, nil) {
		_ = s.end() // nothing has used it
		return nil
	}
	l.logger.Info("Connected to RabbitMQ again", nil)
	return s
}

// redial tries to connect until it succeeds. It returns nil when the link is closed.
func (l *link) redial() *session {
	backoff := backoffOf(l.config.Reconnect)
	pause := backoff.BackoffInitialInterval
	for {
		var s *session
		err := outlive("the connection", func() (err error) { s, err = dial(l.config); return err })
		if err == nil {
			return s
		}
		if !l.set(nil, err) {
			return nil
		}
		spread := 1 + backoff.BackoffRandomizationFactor*(2*rand.Float64()-1)
		wait := time.NewTimer(time.Duration(float64(pause) * spread))
		l.logger.Info("RabbitMQ does not answer, trying again", watermill.LogFields{"error": err, "pause": pause})
		select {
		case <-wait.C:
		case <-l.closing:
			wait.Stop()
			return nil
		}
		pause = min(time.Duration(float64(pause)*backoff.BackoffMultiplier), backoff.BackoffMaxInterval)
	}
}

// set changes the connection, unless the link is closed.
func (l *link) set(s *session, why error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.session, l.why = s, why
	close(l.changed)
	l.changed = make(chan struct{})
	return true
}

// backoffOf returns the pauses between attempts. Watermill's own default would leave a service
// without its broker for up to a minute after the broker is back.
func backoffOf(config *amqp.ReconnectConfig) amqp.ReconnectConfig {
	if config == nil {
		return amqp.ReconnectConfig{
			BackoffInitialInterval: 100 * time.Millisecond, BackoffRandomizationFactor: 0.5,
			BackoffMultiplier: 2, BackoffMaxInterval: 5 * time.Second,
		}
	}
	c := *config
	c.BackoffInitialInterval = max(c.BackoffInitialInterval, time.Millisecond)
	c.BackoffMaxInterval = max(c.BackoffMaxInterval, c.BackoffInitialInterval)
	c.BackoffMultiplier = max(c.BackoffMultiplier, 1)
	return c
}
