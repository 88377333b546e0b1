package inbox

import (
	"context"
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
	"github.com/millrace-go/millrace/internal/writers"
)

// QueueConfig says how a [Queue] delivers the stored messages of one consumer. pubsub.Durable fills
// it in, and documents the fields of the same names with their defaults and what a panic in them
// does. Describe is that of middleware.Inbox; if it panics, the message is stored without a type.
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
	StoreFirst  bool // whether every message of the consumer goes through the table
}

// OnParked says what happens to the messages of an order key behind one that was parked or failed
// terminally.
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
	checkName(problem, c.Consumer)
	checkEpoch(problem, c.Epoch)
	switch {
	case c.Lease < time.Second:
		problem("Lease %v is below a second", c.Lease)
	case c.Lease > century:
		problem("Lease %v is longer than a century", c.Lease)
	}
	howLong(problem, "MinBackoff", c.MinBackoff)
	howLong(problem, "MaxBackoff", c.MaxBackoff)
	if c.MaxAttempts < 0 {
		problem("MaxAttempts %d is negative", c.MaxAttempts)
	}
	if c.OnParked < HoldKey || c.OnParked > Continue {
		problem("OnParked %d is not one of the constants", c.OnParked)
	}
	if c.MaxBackoff < c.MinBackoff {
		problem("MinBackoff %v and MaxBackoff %v are no range", c.MinBackoff, c.MaxBackoff)
	}
	return errors.Join(problems...)
}

// Queue leases the stored messages of one consumer that are due, each to one taker at a time. It is
// safe for concurrent use.
type Queue struct {
	store  *Store
	config QueueConfig
	name   stored.Name
	bell   *bell.Bell
	vain   atomic.Int32 // takes in a row that leased nothing although messages were due
	paused atomic.Bool  // by an operator, as was last read
	routed atomic.Bool  // messages arrive through a router, which names their handler
	saw    atomic.Pointer[sawConsumer]
	slow   atomic.Bool // the next look may need longer

	unopened   atomic.Int32 // payloads in a row that could not be opened
	unopenable *recent.Set  // their messages, each with the number of payloads opened until then

	row *stored.Registered

	serving writers.Queue // who announces that this queue serves its consumer …
	served  time.Time     // … and when the last one did

	lines    lines
	adopting sync.Mutex
	older    olderEpochs
}

// Queue returns the queue of the consumer that config names. From then on the version gate may hold
// messages of that consumer, because a queue delivers them.
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
	self.Unsettled = true // only the middleware knows the consumer's settings
	return &Queue{
		store: s, config: config, name: name, bell: s.bells[name], row: s.rows.Registered(self),
		unopenable: recent.NewSet(mostUnopenable, 4*min(max(config.MaxBackoff, time.Hour), century/4)),
		serving:    make(writers.Queue, 1),
	}, nil
}

// bellOf returns the bell of this process's queues of a consumer, nil if there are none.
func (s *Store) bellOf(name stored.Name) *bell.Bell {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bells[name]
}

// wakeQueue tells this process's queues of a consumer that a message is due.
func (s *Store) wakeQueue(name stored.Name) {
	if b := s.bellOf(name); b != nil {
		b.Ring()
	}
}

// subscription is what the subscriptions of a consumer have in common, in this process.
type subscription struct {
	topic string
	n     int
}

// Subscribed notes a subscription to topic, until leave is called: its handler gets the consumer's stored messages. While
// there is a subscription to another topic, Subscribed returns an error: its handler would get them as well.
func (q *Queue) Subscribed(topic string) (leave func(), err error) {
	s := q.store
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.topics[q.name]
	if of.n > 0 && of.topic != topic {
		return nil, fmt.Errorf("its stored messages go to a handler of topic %q here: "+
			"give each handler a Durable with a Consumer of its own", of.topic)
	}
	s.topics[q.name] = subscription{topic, of.n + 1}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		of := s.topics[q.name]
		of.n--
		s.topics[q.name] = of
	}, nil
}

// Listen returns a channel that gets a token when messages may be due.
func (q *Queue) Listen() (due <-chan struct{}, leave func()) { return q.bell.Listen() }

// Wake tells all listeners of this process that messages of the consumer may be due.
func (q *Queue) Wake() { q.bell.Ring() }

// Config returns the settings of q, with their defaults.
func (q *Queue) Config() QueueConfig { return q.config }

// soon bounds what a queue asks of the database at once. A process renews its leases at each third of their time: what
// hangs for longer must not hold up the next renewal, nor take messages later that this process has itself.
func (q *Queue) soon(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, q.bound(longest))
}

func (q *Queue) bound(most time.Duration) time.Duration {
	const least = 2 * time.Second
	return min(max(q.config.Lease/3, least), most)
}

// patient is soon for a look at the table. After one that had no answer in time, the next may take three times as long: where
// a look needs that, on a slow database, it must succeed in the end.
func (q *Queue) patient(ctx context.Context) (context.Context, context.CancelFunc) {
	most := longest
	if q.slow.Load() {
		most = 3 * longest
	}
	return context.WithTimeout(ctx, q.bound(most))
}

// looked notes how a look went. One that had three times as long and no answer has met a connection that is dead, maybe, and
// not a slow database: the next is short again.
func (q *Queue) looked(took time.Duration, inTime bool) {
	q.slow.Store(inTime && took > longest || !inTime && !q.slow.Load())
}

// longest bounds a transaction of a queue.
const longest = 10 * time.Second

// explain adds to err the consumer and what failed.
func (q *Queue) explain(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("inbox: queue of consumer %q: %s: %w", q.name.Name, what, database.Explain(err))
}
