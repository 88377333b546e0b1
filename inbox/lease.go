package inbox

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox/lease"
	"github.com/millrace-go/millrace/internal/outage"
	"github.com/millrace-go/millrace/internal/steady"
	"github.com/millrace-go/millrace/internal/stored"
	"github.com/millrace-go/millrace/internal/turns"
)

// Leases are the claims of middleware.Deduplicate, for handlers without a transaction.
// They are safe for concurrent use. One value serves all handlers of a process: copies of a
// message in this process wait for each other without asking the store.
type Leases struct {
	store     lease.Store
	extender  lease.Extender // nil if the store is none
	log       watermill.LoggerAdapter
	observers observers
	owner     *Store // whose tables keep the leases; nil for other stores
	work      *deliveries
	debug     bool      // the logger is not silent
	crowded   sync.Once // an eviction was logged

	outage outage.Breaker

	mu        sync.Mutex
	consumers map[stored.Name]*leaseConsumer
}

// LeasesConfig says whom [Leases] tell.
type LeasesConfig struct {
	// Logger gets what a person must know. A panic in it is not logged. Defaults to slog.Default.
	Logger watermill.LoggerAdapter

	// Observers are told of decisions: [KindReceived], [KindCompleted], [KindFailed], [KindDuplicate],
	// [KindReplayed], [KindOutage], [KindDoubleEffect] and [KindEvicted].
	Observers []Observer
}

// NewLeases returns leases kept in store, such as a [lease.Memory]. [Store.Leases] are those in the
// service's database. Make one value per store: two do not see that their handlers share a consumer.
func NewLeases(store lease.Store, config LeasesConfig) *Leases {
	logger := steady.Default(config.Logger)
	extender, _ := store.(lease.Extender)
	work := &deliveries{}
	work.init()
	return &Leases{
		work:      work,
		store:     store,
		extender:  extender,
		log:       steady.Logger(logger, nil),
		debug:     steady.Detailed(logger),
		observers: newObservers(config.Observers),
		consumers: make(map[stored.Name]*leaseConsumer),
	}
}

// Handler returns h as the handler of the consumer that config names: the key of each message is
// taken before h runs and confirmed afterwards. middleware.Deduplicate calls it. Handler returns an
// error if a handler of another name, config.Handler, has the consumer: the two would take each
// other's messages for duplicates.
func (l *Leases) Handler(config LeaseConfig, h message.HandlerFunc) (message.HandlerFunc, error) {
	c, err := l.consumer(config)
	if err != nil {
		return nil, err
	}
	return func(msg *message.Message) ([]*message.Message, error) { return c.handle(msg, h) }, nil
}

// Close admits no more deliveries and waits until those in flight have confirmed or freed their keys. It
// returns an error when ctx ends before that. Call it when Router.Run has returned, before closing the
// client of the store: a handler that returned messages confirms its key after they are published, and
// the router does not wait for that. For [Store.Leases], Close is [Store.Close].
func (l *Leases) Close(ctx context.Context) error {
	if l.owner != nil {
		return l.owner.Close(ctx)
	}
	return l.work.drain(ctx)
}

// Store returns the store of l, to be decorated or queried.
func (l *Leases) Store() lease.Store { return l.store }

// Logger returns the logger of l. It does not panic even if LeasesConfig.Logger does.
func (l *Leases) Logger() watermill.LoggerAdapter { return l.log }

// consumer returns the consumer that config names, or an error if another handler has it.
func (l *Leases) consumer(config LeaseConfig) (*leaseConsumer, error) {
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
	sharing := &turns.Turns{}
	if known := l.consumers[name]; known != nil {
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
		sharing = known.turns
	}
	c := &leaseConsumer{leases: l, config: config, turns: sharing}
	l.consumers[name] = c
	return c, nil
}

// crowding reports that the store forgot n confirmed keys before their retention ended.
func (l *Leases) crowding(ctx context.Context, n int) {
	l.crowded.Do(func() {
		l.log.Error("inbox: keys were forgotten before their retention was over; said once", errCrowded, nil)
	})
	l.observers.tell(ctx, KindEvicted, Event{Reason: "memory full", Count: n})
}

var errCrowded = errors.New("copies of their messages are handled again: raise the Limit of lease.Memory, " +
	"or shorten Retention to what it can remember")
