package inbox

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/stored"
	"github.com/millrace-go/millrace/internal/writers"
)

// maxName is the length of the longest consumer name, so that every database can index it.
const maxName = 255

// OnCollision is what happens to a message with the key, but not the payload, of another one.
type OnCollision int

// The rules for collisions.
const (
	// CollisionDefault parks if the key is the message's own id, since a collision is then a
	// mistake of a producer. It drops if the key is a business key, whose purpose is to collapse
	// different messages. What pubsub.Durable has to store, it parks, whatever OnCollision says.
	CollisionDefault OnCollision = iota
	// CollisionPark stores the newcomer for an operator, once per payload, and acks it.
	CollisionPark
	// CollisionDrop acks the newcomer as a duplicate. It is counted.
	CollisionDrop
	// CollisionFail fails the newcomer with ErrCollision, and its source redelivers it. Observers get
	// KindFailed. A stored message fails so until it is parked, like any that fails.
	CollisionFail
)

// ConsumerConfig has the settings of one consumer. middleware.Inbox fills it in and documents
// the fields, which have the same names there.
type ConsumerConfig struct {
	Name    string
	Handler string
	Key     Key
	Outbox  message.Publisher
	Timeout time.Duration
	Options
}

func (c *ConsumerConfig) setDefaults() {
	if c.Timeout == 0 {
		c.Timeout = 25 * time.Second
	}
	if c.BeforeTimeout == 0 {
		c.BeforeTimeout = c.Timeout
	}
	if c.TwinWait == 0 {
		c.TwinWait = 5 * time.Second
	}
	if c.Retention == 0 {
		c.Retention = 7 * 24 * time.Hour
	}
	if c.OnCollision == CollisionDefault {
		c.OnCollision = CollisionDrop
		if c.Key.withDefault().own {
			c.OnCollision = CollisionPark
		}
	}
	if c.MessageTime == nil {
		c.MessageTime = messageTime
	}
	if c.ClockSkew == 0 {
		c.ClockSkew = 5 * time.Minute
	}
	if c.Redelivered == nil {
		c.Redelivered = redelivered
	}
	if c.Describe == nil {
		c.Describe = describe
	}
	c.Key = c.Key.withDefault()
}

// Validate returns every problem of c at once, except that Name may still be missing.
func (c ConsumerConfig) Validate() error {
	c.setDefaults()
	var problems []error
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	checkName(problem, c.Name)
	checkEpoch(problem, c.Epoch)
	if c.FormerKey.of != nil && c.Epoch == 0 {
		problem("FormerKey is the key of the epoch before, and Epoch is 0: raise Epoch by 1 where Key changes")
	}
	if c.FormerKey.of != nil && c.FormerKey.source == c.Key.source {
		problem("FormerKey and Key are the same, %s: FormerKey is what Key was in epoch %d", c.Key.source, c.Epoch-1)
	}
	howLong(problem, "Timeout", c.Timeout)
	howLong(problem, "BeforeTimeout", c.BeforeTimeout)
	howLong(problem, "TwinWait", c.TwinWait)
	if c.MaxInFlight < 0 {
		problem("MaxInFlight %d is negative", c.MaxInFlight)
	}
	if c.Retention != Forever && c.Retention < MinRetention {
		problem("Retention %v is below %v, the minimum; inbox.Forever keeps all", c.Retention, MinRetention)
	}
	if c.Window < 0 {
		problem("Window %v is negative", c.Window)
	}
	if c.ClockSkew < 0 {
		problem("ClockSkew %v is negative", c.ClockSkew)
	}
	if c.OnCollision < CollisionDefault || c.OnCollision > CollisionFail {
		problem("OnCollision %d is not one of the constants", c.OnCollision)
	}
	if c.OnReplay < ReplayAllow || c.OnReplay > ReplayRefuse {
		problem("OnReplay %d is not one of the constants", c.OnReplay)
	}
	return errors.Join(problems...)
}

// century bounds what is added to a time: the nanoseconds of a clock end in 2262.
const century = 100 * 365 * 24 * time.Hour

func checkName(problem func(format string, args ...any), name string) {
	if len(name) > maxName {
		problem("Consumer %.20q… is longer than %d bytes: choose a shorter name", name, maxName)
	}
	if strings.HasPrefix(name, stored.LeaseNames) {
		problem("Consumer %.20q has the prefix that is reserved for the consumers of leases", name)
	}
}

// checkEpoch refuses what the column does not hold.
func checkEpoch(problem func(format string, args ...any), epoch int) {
	switch {
	case epoch < 0:
		problem("Epoch %d is negative", epoch)
	case epoch > math.MaxInt32:
		problem("Epoch %d is above %d, the greatest", epoch, math.MaxInt32)
	}
}

// howLong reports what is wrong with a setting that says how long something lasts.
func howLong(problem func(format string, args ...any), name string, d time.Duration) {
	switch {
	case d < 0:
		problem("%s %v is negative", name, d)
	case d > century:
		problem("%s %v is longer than a century", name, d)
	}
}

// Consumer claims the messages of one handler. Its name and epoch identify it in the Store's
// namespace. It is safe for concurrent use.
type claimConsumer struct {
	store  *Store
	config ConsumerConfig
	prefix string        // of keys in memory
	tally  *tally        // counts its runs and duplicates
	slots  chan struct{} // nil without a bound of its own

	reread reread
	gaps   gaps
	early  *waiters
	row    *stored.Registered

	gate       atomic.Pointer[gate] // known from the first message; nil if nothing can be foreseen
	unforeseen atomic.Bool          // a middleware between inbox and gate changes versions
	gated      atomic.Bool          // a message came to a version gate

	pace            pace // of refused messages
	warnedForgotten sync.Once
	warnedNoOutbox  sync.Once
	warnedUnguarded sync.Once
	warnedSingly    sync.Once
	warnedFormer    sync.Once
	warnedUnserved  sync.Once
	formerOver      sync.Once
	formerShared    atomic.Bool // two messages of this epoch turned out to share a former key

	batches *batches // nil if the handler gets one message at a time

	former *claimConsumer // of the epoch before, where messages are looked up too; nil without FormerKey
	heir   *claimConsumer // the consumer whose former this is; nil for others
}

// consumer returns the consumer that config names, with these settings. It refuses a second handler
// with the same name.
func (s *Store) consumer(config ConsumerConfig) (*claimConsumer, error) {
	if config.Name == "" {
		return nil, errors.New("inbox: a consumer needs a name: set Consumer, or run inside a Watermill router, " +
			"whose handler's name is taken")
	}
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("inbox: consumer %q: %w", config.Name, err)
	}
	given := config
	config.setDefaults()
	c, err := s.enrol(config)
	if err == nil {
		c.former = s.former(given, c)
		s.declare(&config)
	}
	return c, err
}

func (s *Store) enrol(config ConsumerConfig) (*claimConsumer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := stored.Name{Name: config.Name, Epoch: config.Epoch}
	known := s.consumers[name]
	if known != nil {
		if known.config.Handler == "" || config.Handler == "" { // a stored message may not know its handler
			config.Handler += known.config.Handler
		}
		if known.config.Handler != "" && known.config.Handler != config.Handler {
			return nil, fmt.Errorf("inbox: consumer %q is used by two handlers, %q and %q, which would take each "+
				"other's messages for duplicates: give each its own Consumer", config.Name, known.config.Handler, config.Handler)
		}
		if known.config.Key.source != config.Key.source {
			return nil, fmt.Errorf("inbox: consumer %q: %w from %s to %s within this process: give it the same Key everywhere",
				config.Name, ErrKeyChanged, known.config.Key.source, config.Key.source)
		}
	}
	c := &claimConsumer{
		store: s, config: config, early: new(waiters), prefix: name.Prefix(), tally: s.tallies.of(name), row: s.rows.Registered(config.self()),
	}
	if known != nil {
		c.early = known.early
		c.gated.Store(known.gated.Load())
	}
	c.row.Met = c.formerIsOver
	switch {
	case known != nil && cap(known.slots) == config.MaxInFlight:
		c.slots = known.slots
	case config.MaxInFlight > 0:
		c.slots = make(chan struct{}, config.MaxInFlight)
	}
	s.consumers[name] = c
	return c, nil
}

// slot waits for the right to have a transaction open: the consumer's, then the store's. It takes what is free even if ctx
// has ended. The caller already has the turn of its key, so copies that wait for the turn take no slots.
func (c *claimConsumer) slot(ctx context.Context) (leave func(), err error) {
	if c.slots == nil {
		return c.store.slot(ctx)
	}
	if err := writers.Take(ctx, c.slots); err != nil {
		return nil, err
	}
	leaveStore, err := c.store.slot(ctx)
	if err != nil {
		<-c.slots
		return nil, err
	}
	return func() {
		leaveStore()
		<-c.slots
	}, nil
}

func (c *claimConsumer) name() stored.Name {
	return stored.Name{Name: c.config.Name, Epoch: c.config.Epoch}
}
