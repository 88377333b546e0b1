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

// keep replaces s when it is lost, and then its successors. If what was read or sent ended one soon, the next may end
// as soon: RabbitMQ counts each time a failed delivery of what the subscriber had, so keep waits before it connects.
func (l *link) keep(s *session) {
	pauses := newPauses(l.config)
	for s != nil {
		began := time.Now()
		reason, closed := l.watch(s)
		if closed {
			return
		}
		s.sever() // amqp091 waits for a blocked writer before it closes the socket
		if !refused(reason) || time.Since(began) >= pauses.BackoffMaxInterval {
			pauses = newPauses(l.config)
			s = l.replace(lossOf(reason), 0)
		} else {
			s = l.replace(lossOf(reason), pauses.next())
		}
	}
}

// watch waits until s is lost or the link closed, and meanwhile tells of alarms.
func (l *link) watch(s *session) (lost *amqp091.Error, closed bool) {
	for blocked := s.blocked; ; {
		select {
		case <-l.closing:
			return nil, true
		case reason := <-s.lost:
			return reason, false
		case alarm, open := <-blocked:
			switch {
			case !open: // lost says why
				blocked = nil
			case alarm.Active:
				s.alarm.Store(&alarm.Reason)
				l.logger.Error("RabbitMQ takes no messages", errors.New(alarm.Reason), nil)
			default:
				s.alarm.Store(nil)
				l.logger.Info("RabbitMQ takes messages again", nil)
			}
		}
	}
}

// replace returns the next connection, nil if the link is closed.
func (l *link) replace(why error, pause time.Duration) *session {
	if !l.set(nil, why) {
		return nil
	}
	l.logger.Error("Lost the connection to RabbitMQ", why, nil)
	if pause > 0 {
		l.logger.Info("The connection to RabbitMQ ended soon, waiting before the next", watermill.LogFields{"error": why, "pause": pause})
		if !l.rest(pause) {
			return nil
		}
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
	pauses := newPauses(l.config)
	for {
		var s *session
		err := outlive("the connection", func() (err error) { s, err = dial(l.config); return err })
		if err == nil {
			return s
		}
		if !l.set(nil, err) {
			return nil
		}
		pause := pauses.next()
		l.logger.Info("RabbitMQ does not answer, trying again", watermill.LogFields{"error": err, "pause": pause})
		if !l.rest(pause) {
			return nil
		}
	}
}

// rest waits for about that long, so that many clients do not connect at once, and reports whether the link is still open.
func (l *link) rest(pause time.Duration) bool {
	spread := 1 + backoffOf(l.config.Reconnect).BackoffRandomizationFactor*(2*rand.Float64()-1)
	wait := time.NewTimer(time.Duration(float64(pause) * spread))
	defer wait.Stop()
	select {
	case <-wait.C:
		return true
	case <-l.closing:
		return false
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
