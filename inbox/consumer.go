package inbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/stored"
)

// maxName is the length of the longest consumer name, so that every database can index it.
const maxName = 255

// OnCollision is what happens to a message that has the key of another one but a payload
// of its own.
type OnCollision int

// What can happen on a collision.
const (
	// CollisionDefault parks where the key is the message's own id, where a collision is
	// somebody's mistake, and drops where it is a business key, which exists to collapse
	// different messages.
	CollisionDefault OnCollision = iota
	// CollisionPark stores the newcomer for an operator, once per payload, and acks it.
	CollisionPark
	// CollisionDrop acks the newcomer as a duplicate. It is counted.
	CollisionDrop
	// CollisionFail returns ErrCollision, and tells observers of it as KindFailed.
	CollisionFail
)

// ConsumerConfig is how one consumer claims its messages. middleware.Inbox fills it in;
// its fields of the same names say what each is for and what it defaults to.
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
	if len(c.Name) > maxName {
		problem("Consumer %.20q… is longer than %d bytes: choose a shorter name", c.Name, maxName)
	}
	if strings.HasPrefix(c.Name, stored.LeaseNames) {
		problem("Consumer %q begins like the consumers of leases", c.Name)
	}
	if c.Epoch < 0 {
		problem("Epoch %d is negative", c.Epoch)
	}
	if c.FormerKey.of != nil && c.Epoch == 0 {
		problem("FormerKey is the key of the epoch before, and Epoch is 0: raise Epoch by 1 where Key changes")
	}
	if c.FormerKey.of != nil && c.FormerKey.source == c.Key.source {
		problem("FormerKey and Key are the same, %s: FormerKey is what Key was in epoch %d", c.Key.source, c.Epoch-1)
	}
	if c.Timeout < 0 {
		problem("Timeout %v is negative", c.Timeout)
	}
	if c.BeforeTimeout < 0 {
		problem("BeforeTimeout %v is negative", c.BeforeTimeout)
	}
	if c.TwinWait < 0 {
		problem("TwinWait %v is negative", c.TwinWait)
	}
	if c.MaxInFlight < 0 {
		problem("MaxInFlight %d is negative", c.MaxInFlight)
	}
	if c.Retention != Forever && c.Retention < MinRetention {
		problem("Retention %v is below %v, the least that makes sense; inbox.Forever keeps all", c.Retention, MinRetention)
	}
	if c.Window < 0 {
		problem("Window %v is negative", c.Window)
	}
	if c.ClockSkew < 0 {
		problem("ClockSkew %v is negative", c.ClockSkew)
	}
	if c.OnCollision < CollisionDefault || c.OnCollision > CollisionFail {
		problem("OnCollision %d is none of the constants", c.OnCollision)
	}
	if c.OnReplay < ReplayAllow || c.OnReplay > ReplayRefuse {
		problem("OnReplay %d is none of the constants", c.OnReplay)
	}
	return errors.Join(problems...)
}

// Consumer is one reader of messages, known by its name and epoch in the Store's
// namespace. It is safe for concurrent use.
type Consumer struct {
	store  *Store
	config ConsumerConfig
	prefix string        // of keys in memory
	tally  *tally        // of what it does
	slots  chan struct{} // nil without a bound of its own

	reread reread
	gaps   gaps
	row    *stored.Registered

	pace            pace // of what is refused
	warnedForgotten sync.Once
	warnedUnguarded sync.Once
	warnedFormer    sync.Once
	formerOver      sync.Once
	formerShared    atomic.Bool // a former key was met that another message of this epoch has as well

	former *Consumer // the epoch before, under whose key messages are looked for as well; nil: none
	heir   *Consumer // whose former this is
}

// consumer returns the consumer that config names, with these settings, or an error if another
// handler has it.
func (s *Store) consumer(config ConsumerConfig) (*Consumer, error) {
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

func (s *Store) enrol(config ConsumerConfig) (*Consumer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := stored.Name{Name: config.Name, Epoch: config.Epoch}
	if known := s.consumers[name]; known != nil {
		if known.config.Handler == "" || config.Handler == "" { // a stored message need not know it
			config.Handler += known.config.Handler
		}
		if known.config.Handler != "" && known.config.Handler != config.Handler {
			return nil, fmt.Errorf("inbox: consumer %q is used by two handlers, %q and %q, which would take each "+
				"other's messages for duplicates: give each its own Consumer", config.Name, known.config.Handler, config.Handler)
		}
		if known.config.Key.source != config.Key.source {
			return nil, fmt.Errorf("inbox: consumer %q: %w from %s to %s: give it a new Epoch",
				config.Name, ErrKeyChanged, known.config.Key.source, config.Key.source)
		}
	}
	c := &Consumer{
		store: s, config: config, prefix: name.Prefix(), tally: s.tallies.of(name), row: s.rows.Registered(config.self()),
	}
	c.row.Met = c.formerIsOver
	if config.MaxInFlight > 0 {
		c.slots = make(chan struct{}, config.MaxInFlight)
	}
	s.consumers[name] = c
	return c, nil
}

// slot waits for the right to hold a transaction: the consumer's, then the store's. It is
// taken with the turn of a key already in hand, so copies that wait for it take no slots.
func (c *Consumer) slot(ctx context.Context) (leave func(), err error) {
	if c.slots == nil {
		return c.store.slot(ctx)
	}
	select {
	case c.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
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

func (c *Consumer) name() stored.Name { return stored.Name{Name: c.config.Name, Epoch: c.config.Epoch} }
