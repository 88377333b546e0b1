package interop_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
)

// process is one process of the service.
type process struct {
	*pipeline
	router     *message.Router
	store      *inbox.Store
	subscriber closing
	stopped    chan error
}

// closing tells when a subscriber was closed: then acks come too late.
type closing struct {
	message.Subscriber
	closed chan struct{}
	close  func() error
}

func newClosing(s message.Subscriber) closing {
	closed := make(chan struct{})
	return closing{s, closed, sync.OnceValue(func() error {
		defer close(closed)
		return s.Close()
	})}
}

// Close returns what the subscriber does.
func (c closing) Close() error { return c.close() }

func (p *pipeline) launch() *process {
	p.Helper()
	store := rig.NewStore(p, p.db.Open(p).DB, inbox.Config{})
	router := rig.NewRouter(p)
	s := &process{pipeline: p, router: router, store: store, stopped: make(chan error, 1)}
	s.subscriber = newClosing(p.broker.subscriber())
	router.AddPlugin(store.Plugin())
	router.AddMiddleware(p.watch, millrace.Inbox{Store: store}.Middleware)
	router.AddConsumerHandler("billing", p.broker.topic, s.subscriber, s.handle)
	go func() { s.stopped <- router.Run(context.WithoutCancel(p.Context())) }()
	p.Cleanup(func() { _ = router.Close() })
	p.await(router.Running(), "the router runs")
	return s
}

func (s *process) close() error {
	return errors.Join(s.router.Close(), <-s.stopped, s.store.Close(s.Context()))
}

// closeAt closes the process at an event.
func (s *process) closeAt(event <-chan struct{}, what string) (closed <-chan error) {
	done := make(chan error, 1)
	go func() { done <- errors.Join(happens(event, what), s.close()) }()
	return done
}

var (
	errFailed  = errors.New("failed after the effect was written")
	errAckLost = errors.New("the ack is lost")
)

// watch stands outside the inbox, where an error makes a message come again that was
// handled.
func (p *pipeline) watch(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		p.seen.count(msg, func(s *sighting) { s.deliveries++ })
		produced, err := next(msg)
		if err != nil {
			return produced, err
		}
		if s := p.seen.count(msg, func(s *sighting) { s.successes++ }); s.successes == 1 && losesAck(number(msg)) {
			return nil, errAckLost
		}
		p.seen.count(msg, func(s *sighting) { s.acks++ })
		return produced, nil
	}
}

func (s *process) handle(msg *message.Message) error {
	if err := record(msg); err != nil {
		return err
	}
	first := s.seen.count(msg, func(s *sighting) { s.runs++ }).runs == 1
	if first && failsFirst(number(msg)) {
		return errFailed
	}
	if first && interrupts(number(msg)) {
		close(s.interrupted)
		if err := errors.Join(happens(msg.Context().Done(), "the router cancels what it delivered"),
			happens(s.subscriber.closed, "the router closes the subscriber")); err != nil {
			return err
		}
	}
	s.seen.count(msg, func(s *sighting) { s.completions++ })
	return nil
}

// record is the handler's effect.
func record(msg *message.Message) error {
	ctx := context.WithoutCancel(msg.Context())
	return rig.Exec(ctx, `INSERT INTO effects (uuid, payload, metadata) VALUES (?, ?, ?)`, msg.UUID, []byte(msg.Payload), encode(msg.Metadata))
}

func encode(metadata message.Metadata) string {
	text, err := json.Marshal(metadata)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// sighting is what was seen of a message.
type sighting struct {
	deliveries  int
	runs        int // of the handler
	completions int // runs that succeeded
	successes   int // deliveries that the inbox is done with
	acks        int
}

type sightings struct {
	mu  sync.Mutex
	all map[string]*sighting // by UUID

	order []string // UUIDs, as they came first
}

func newSightings() *sightings { return &sightings{all: make(map[string]*sighting)} }

func (s *sightings) of(uuid string) sighting {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.all[uuid]; known != nil {
		return *known
	}
	return sighting{}
}

// count changes what was seen of a message and returns it.
func (s *sightings) count(msg *message.Message, change func(*sighting)) sighting {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.all[msg.UUID]
	if known == nil {
		known = &sighting{}
		s.all[msg.UUID] = known
		s.order = append(s.order, msg.UUID)
	}
	change(known)
	return *known
}
