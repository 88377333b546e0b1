package inbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/millrace/internal/outage"
	"github.com/millrace-go/millrace/internal/steady"
	"github.com/millrace-go/millrace/internal/stored"
	"github.com/millrace-go/millrace/internal/turns"
)

// LeaseKey is what a lease is on. Two keys are the same if Consumer, Epoch and ID are.
type LeaseKey struct {
	Consumer string
	Epoch    int
	ID       string // any bytes, at most 128
	Source   string // describes the consumer's Key, for stores that notice a change of it
}

// LeaseStatus is what a [LeaseStore] says of a key.
type LeaseStatus int

// What a [LeaseStore] can say of a key.
const (
	LeaseTaken     LeaseStatus = iota + 1 // it is the caller's now
	LeaseHeld                             // it is another's, who has Remaining left to confirm it
	LeaseConfirmed                        // it was confirmed, and is remembered for Remaining
)

// LeaseState is a [LeaseStore]'s answer.
type LeaseState struct {
	Status    LeaseStatus
	Remaining time.Duration
}

// LeaseStore keeps leases: claims that end by themselves. All methods are safe for
// concurrent use, return within seconds, and measure time by the store's clock, not by
// the caller's. A holder is known by its token, which is positive and never used twice.
// An error that wraps [ErrUnavailable] holds further deliveries back until the store
// answers again. A panic goes on its way, to the router, after the process has let go of the key: one of
// Acquire frees it, and after one of Confirm or Release it is taken until its lease ends. Where
// messages that the handler returned are confirmed after their ack, and at a heartbeat, it is logged.
//
// lease.NewMemory, [Store.Leases] and package redisleases bring one each.
type LeaseStore interface {
	// Acquire takes key for the holder of token, in one step, if nobody holds it: it was
	// never taken, was released, or its lease or the time of its confirmation ran out.
	Acquire(ctx context.Context, key LeaseKey, token int64, lease time.Duration) (LeaseState, error)

	// Confirm makes key known as handled for the time of retention. It returns an error that
	// wraps [ErrLeaseLost] if token does not hold key any more.
	Confirm(ctx context.Context, key LeaseKey, token int64, retention time.Duration) error

	// Release frees key. If token does not hold it, Release does nothing.
	Release(ctx context.Context, key LeaseKey, token int64) error
}

// LeaseExtender is a [LeaseStore] whose leases can be extended. Those of one that is not
// end even while their holder works.
type LeaseExtender interface {
	// Extend lets the lease end after lease from now. It returns an error that wraps
	// [ErrLeaseLost] if token does not hold key any more.
	Extend(ctx context.Context, key LeaseKey, token int64, lease time.Duration) error
}

// LeasesConfig is how [Leases] report. The zero value is silent.
type LeasesConfig struct {
	// Logger hears what a person must know. What it panics with is not said. Defaults to none.
	Logger watermill.LoggerAdapter

	// Observers are told of decisions: [KindReceived], [KindCompleted], [KindFailed], [KindDuplicate],
	// [KindReplayed], [KindOutage], [KindDoubleEffect] and [KindEvicted].
	Observers []Observer
}

// Leases are the claims of middleware.Deduplicate, for handlers without a transaction.
// They are safe for concurrent use; one value serves all handlers of a process, and lets
// the copies of a message in this process wait for each other without asking the store.
type Leases struct {
	store     LeaseStore
	extender  LeaseExtender // nil if the store has none
	log       watermill.LoggerAdapter
	observers observers
	owner     *Store // of the tables; nil for other stores
	debug     bool   // someone listens to what is said of each duplicate

	turns  turns.Turns
	outage outage.Breaker

	mu        sync.Mutex
	consumers map[stored.Name]*LeaseConsumer
}

// NewLeases returns leases kept in store.
func NewLeases(store LeaseStore, config LeasesConfig) *Leases {
	if config.Logger == nil {
		config.Logger = watermill.NopLogger{}
	}
	extender, _ := store.(LeaseExtender)
	_, silent := config.Logger.(watermill.NopLogger)
	return &Leases{
		store:     store,
		extender:  extender,
		log:       steady.Logger(config.Logger, nil),
		debug:     !silent,
		observers: newObservers(config.Observers),
		consumers: make(map[stored.Name]*LeaseConsumer),
	}
}

// Store returns what l was made of, to be decorated or asked.
func (l *Leases) Store() LeaseStore { return l.store }

// Logger returns the logger of l. It does not panic, should LeasesConfig.Logger do so.
func (l *Leases) Logger() watermill.LoggerAdapter { return l.log }

// LeaseConfig is how one consumer takes leases. middleware.Deduplicate fills it in; its
// fields of the same names say what each is for and what it defaults to.
type LeaseConfig struct {
	Name      string
	Handler   string
	Epoch     int
	Key       Key
	Lease     time.Duration
	Wait      time.Duration
	Retention time.Duration
	OnReplay  ReplayRule
}

func (c *LeaseConfig) setDefaults() {
	if c.Lease == 0 {
		c.Lease = time.Minute
	}
	if c.Wait == 0 {
		c.Wait = 5 * time.Second
	}
	if c.Retention == 0 {
		c.Retention = 7 * 24 * time.Hour
	}
	c.Key = c.Key.withDefault()
}

// minLease is below every useful lease and retention, and above what a forgotten unit gives.
const minLease = 100 * time.Millisecond

// Validate returns every problem of c at once, except that Name may still be missing.
func (c LeaseConfig) Validate() error {
	c.setDefaults()
	var problems []error
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if most := maxName - len(stored.LeaseNames); len(c.Name) > most {
		problem("Consumer %.20q… is longer than %d bytes: choose a shorter name", c.Name, most)
	}
	if c.Epoch < 0 {
		problem("Epoch %d is negative", c.Epoch)
	}
	if c.Lease < minLease {
		problem("Lease %v is below %v", c.Lease, minLease)
	}
	if c.Wait < 0 {
		problem("Wait %v is negative", c.Wait)
	}
	if c.Retention != Forever && c.Retention < minLease {
		problem("Retention %v is below %v; inbox.Forever keeps all", c.Retention, minLease)
	}
	if c.OnReplay != ReplayAllow && c.OnReplay != ReplayRefuse {
		problem("OnReplay %d is neither ReplayAllow nor ReplayRefuse: without a transaction nothing that is sent can be kept back", c.OnReplay)
	}
	return errors.Join(problems...)
}

// retention is how long a confirmed key is kept. No store must count to for ever.
func (c *LeaseConfig) retention() time.Duration {
	const century = 100 * 365 * 24 * time.Hour
	if c.Retention == Forever {
		return century
	}
	return c.Retention
}

// LeaseConsumer takes leases for one consumer of messages.
type LeaseConsumer struct {
	leases *Leases
	config LeaseConfig
	prefix string // of its keys in memory
	heart  heart
	pace   pace // of messages without a key
}

// Consumer returns the consumer that config names. Asked for by a second handler it is an
// error, since the two would take each other's messages for duplicates.
func (l *Leases) Consumer(config LeaseConfig) (*LeaseConsumer, error) {
	if config.Name == "" {
		return nil, errors.New("inbox: a consumer needs a name: set Consumer, or run inside a Watermill router, " +
			"whose handler's name is taken")
	}
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("inbox: consumer %q: %w", config.Name, err)
	}
	config.setDefaults()

	l.mu.Lock()
	defer l.mu.Unlock()
	name := stored.Name{Name: config.Name, Epoch: config.Epoch}
	c := &LeaseConsumer{leases: l, config: config, prefix: fmt.Sprintf("%d:", len(l.consumers))}
	if known := l.consumers[name]; known != nil {
		if known.config.Handler != config.Handler {
			return nil, fmt.Errorf("inbox: consumer %q is used by two handlers, %q and %q, which would take each "+
				"other's messages for duplicates: give each its own Consumer", config.Name, known.config.Handler, config.Handler)
		}
		if known.config.Key.source != config.Key.source {
			return nil, fmt.Errorf("inbox: consumer %q: %w from %s to %s: give it a new Epoch",
				config.Name, ErrKeyChanged, known.config.Key.source, config.Key.source)
		}
		c.prefix = known.prefix
	}
	l.consumers[name] = c
	return c, nil
}
