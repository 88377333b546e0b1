package inbox

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/bell"
	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/recent"
	"github.com/millrace-go/millrace/internal/stored"
)

// QueueConfig is how the open messages of one consumer are delivered. pubsub.Durable fills
// it in; its fields of the same names say what each is for, what it defaults to, and what its panic does. Describe
// is that of middleware.Inbox; a message of which it panics is stored without a type.
type QueueConfig struct {
	Consumer    string
	Epoch       int
	Key         Key
	Lease       time.Duration
	MaxAttempts int
	MinBackoff  time.Duration
	MaxBackoff  time.Duration
	OrderKey    func(*message.Message) (string, error)
	OnParked    OnParked
	OnPark      func(msg *message.Message, reason string) error
	NotBefore   func(*message.Message) time.Time
	Classify    func(error) error
	Describe    func(*message.Message) (eventType, eventVersion string)
	Fingerprint func(*message.Message) ([]byte, error)
	StoreFirst  bool // Mode is that: no message of the consumer goes past the table
}

// OnParked is what happens to the messages of an order key behind one that was parked, or failed terminally.
type OnParked int

// What can happen behind a parked message.
const (
	HoldKey  OnParked = iota // they wait for an operator
	Continue                 // they are delivered
)

func (c *QueueConfig) setDefaults() {
	if c.Lease == 0 {
		c.Lease = time.Minute
	}
	if c.MaxAttempts == 0 {
		c.MaxAttempts = 10
	}
	if c.MinBackoff == 0 {
		c.MinBackoff = time.Second
	}
	if c.MaxBackoff == 0 {
		c.MaxBackoff = 5 * time.Minute
	}
	if c.Classify == nil {
		c.Classify = func(err error) error { return err }
	}
	if c.Describe == nil {
		c.Describe = describe
	}
	c.Key = c.Key.withDefault()
}

// Validate returns every problem of c at once.
func (c QueueConfig) Validate() error {
	c.setDefaults()
	var problems []error
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if c.Consumer == "" {
		problem("Consumer is required: the name of the handler, which is not known before its first message")
	}
	if c.Epoch < 0 {
		problem("Epoch %d is negative", c.Epoch)
	}
	if c.Lease < time.Second {
		problem("Lease %v is below a second", c.Lease)
	}
	if c.MaxAttempts < 0 {
		problem("MaxAttempts %d is negative", c.MaxAttempts)
	}
	if c.OnParked < HoldKey || c.OnParked > Continue {
		problem("OnParked %d is none of the constants", c.OnParked)
	}
	if c.MinBackoff < 0 || c.MaxBackoff < c.MinBackoff {
		problem("MinBackoff %v and MaxBackoff %v are no range", c.MinBackoff, c.MaxBackoff)
	}
	return errors.Join(problems...)
}

// Queue gives out the open messages of one consumer that are due, each to one taker at a
// time. It is safe for concurrent use.
type Queue struct {
	store  *Store
	config QueueConfig
	name   stored.Name
	bell   *bell.Bell
	vain   atomic.Int32 // looks in a row that found nothing to be had
	paused atomic.Bool  // by an operator, when it was last looked
	routed atomic.Bool  // a router is around it: what arrives knows its handler
	saw    atomic.Pointer[sawConsumer]

	unopened   atomic.Int32 // payloads in a row that could not be had
	unopenable *recent.Set  // messages with such a payload, and how many others were opened by then

	row *stored.Registered

	serving sync.Mutex
	served  time.Time // when it was last said that this queue serves its consumer

	lines    lines
	adopting sync.Mutex
	older    olderEpochs
}

// Queue returns the queue of the consumer that config names. From then on its messages
// count as delivered by somebody, so the version gate holds what has to wait.
func (s *Store) Queue(config QueueConfig) (*Queue, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("inbox: queue: %w", err)
	}
	config.setDefaults()
	s.lookWatched(config)
	s.mu.Lock()
	defer s.mu.Unlock()
	name := stored.Name{Name: config.Consumer, Epoch: config.Epoch}
	if s.bells[name] == nil {
		s.bells[name] = &bell.Bell{}
	}
	consumer := ConsumerConfig{Name: config.Consumer, Key: config.Key, Options: Options{Epoch: config.Epoch}}
	consumer.setDefaults()
	self := consumer.self()
	self.Unsettled = true // the middleware knows
	return &Queue{
		store: s, config: config, name: name, bell: s.bells[name], row: s.rows.Registered(self),
		unopenable: recent.NewSet(mostUnopenable, 4*max(config.MaxBackoff, time.Hour)),
	}, nil
}

// bellOf returns what wakes the queues that deliver in this process what is stored for a
// consumer, nil if there are none.
func (s *Store) bellOf(name stored.Name) *bell.Bell {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bells[name]
}

// wakeQueue says that a message of a consumer is due.
func (s *Store) wakeQueue(name stored.Name) {
	if b := s.bellOf(name); b != nil {
		b.Ring()
	}
}

// Listen returns a channel that gets a token when messages may be due.
func (q *Queue) Listen() (due <-chan struct{}, leave func()) { return q.bell.Listen() }

// Wake says that messages may be due.
func (q *Queue) Wake() { q.bell.Ring() }

// Config returns the settings with their defaults.
func (q *Queue) Config() QueueConfig { return q.config }

// explain says whose queue had the error.
func (q *Queue) explain(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("inbox: queue of consumer %q: %s: %w", q.name.Name, what, database.Explain(err))
}
