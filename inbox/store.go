package inbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/bell"
	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/outage"
	"github.com/millrace-go/millrace/internal/recent"
	"github.com/millrace-go/millrace/internal/steady"
	"github.com/millrace-go/millrace/internal/stored"
	"github.com/millrace-go/millrace/internal/turns"
	"github.com/millrace-go/millrace/internal/writers"
)

// Store records, in a service's own database, which messages its consumers have handled. It is safe
// for concurrent use. One Store serves all handlers of a process.
type Store struct {
	db        *database.DB
	rows      stored.Rows
	config    Config
	dialect   *dialect.Dialect
	log       watermill.LoggerAdapter
	observers observers
	debug     atomic.Bool // the logger may write lines about single messages

	routersLog *steady.Later // the router's logger, if there is no Config.Logger

	turns      turns.Turns // of keys
	aggregates turns.Turns // of aggregates
	settled    *recent.Set
	versions   *recent.Set  // the last applied version of each aggregate …
	reached    *recent.Set  // … and the first one seen: versions from there on are not before the aggregate's first
	fetched    atomic.Int64 // payloads that the blob store returned
	unsealed   atomic.Int64 // payloads that the codec opened
	unkept     atomic.Int32 // deliveries in a row that failed because a payload could not be kept
	outage     outage.Breaker

	slotsOnce sync.Once
	slots     chan struct{}
	leaveSlot func()

	pauses atomic.Int64 // calls of Pause and Resume in this process

	identity atomic.Pointer[identity] // of the server, when it was last asked

	mu        sync.Mutex
	consumers map[stored.Name]*claimConsumer
	declared  map[string]remembering     // by consumer
	unwatched map[string]bool            // consumers with a StoreFirst queue here and no observer
	bells     map[stored.Name]*bell.Bell // of consumers with a queue here
	topics    map[stored.Name]subscription

	strays     strays
	unattended unattended
	panics     atomic.Int64 // of the service's functions in our goroutines

	unsettled settler
	stayed    atomic.Int64 // how many of the oldest outcomes the next Redispatch skips
	tallies   tallies
	presence  presence
	work      background

	leasesOnce sync.Once
	leases     *Leases
}

// settledTTL bounds how long a settled key is trusted without asking the database. It is far below
// the smallest retention.
const settledTTL = 2 * time.Minute

// NewStore returns a Store on the service's own pool. It opens no connection, unless the driver
// does not say which database it is for. An error names all problems of config. A service that has
// a *sql.DB passes sqlx.NewDb(db, "pgx"), with the name of its driver: "pgx" and "postgres",
// "mysql", and "sqlite" and "sqlite3" are known.
func NewStore(db *sqlx.DB, config Config) (*Store, error) {
	if db == nil {
		return nil, errors.New("inbox: NewStore needs a *sqlx.DB")
	}
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	pool, err := database.Open(db, config.Dialect, config.names())
	if err != nil {
		return nil, fmt.Errorf("inbox: %w", err)
	}
	s := &Store{
		db:        pool,
		rows:      stored.Rows{DB: pool, Namespace: config.Namespace},
		config:    config,
		dialect:   pool.Dialect,
		observers: newObservers(config.Observers),
		settled:   recent.NewSet(config.SettledKeys, settledTTL),
		versions:  recent.NewSet(config.SettledKeys, settledTTL),
		reached:   recent.NewSet(config.SettledKeys, settledTTL),
		strays:    strays{keys: recent.NewSet(mostStrays, strayFor)},
		consumers: make(map[stored.Name]*claimConsumer),
		declared:  make(map[string]remembering),
		unwatched: make(map[string]bool),
		bells:     make(map[stored.Name]*bell.Bell),
		topics:    make(map[stored.Name]subscription),
	}
	logger := config.Logger
	s.debug.Store(steady.Detailed(steady.Default(logger)))
	if logger == nil {
		s.routersLog = steady.NewLater()
		logger = s.routersLog
	}
	s.log = steady.Logger(logger, func() { s.panics.Add(1) })
	pool.Lost = s.forget
	s.work.init()
	return s, nil
}

// Logger returns the logger of the Store, even before a router has given it one. The logger
// recovers from panics of Config.Logger.
func (s *Store) Logger() watermill.LoggerAdapter { return s.log }

// slot waits for the right to hold a transaction. It takes a slot that is free even if ctx has ended.
func (s *Store) slot(ctx context.Context) (leave func(), err error) {
	s.slotsOnce.Do(func() {
		s.slots = make(chan struct{}, s.maxInFlight())
		s.leaveSlot = func() { <-s.slots }
	})
	if err := writers.Take(ctx, s.slots); err != nil {
		return nil, err
	}
	if !s.dialect.OneWriter {
		return s.leaveSlot, nil
	}
	// One delivery at a time asks for the writer's turn. What else writes, such as a relay that must extend
	// its lease, would wait for all that ask before it.
	leaveTurn, err := s.db.Enter(ctx)
	if err != nil {
		s.leaveSlot()
		return nil, err
	}
	return func() {
		leaveTurn()
		s.leaveSlot()
	}, nil
}

func (s *Store) maxInFlight() int {
	if s.dialect.OneWriter {
		return 1
	}
	if s.config.MaxInFlight > 0 {
		return s.config.MaxInFlight
	}
	if pool := s.db.Stats().MaxOpenConnections; pool > 0 {
		return max(pool-1, 1)
	}
	return 32
}

// forget clears the caches: the server behind the next connection may have been restored to an
// earlier state.
func (s *Store) forget() {
	s.settled.Forget()
	s.versions.Forget()
	s.reached.Forget()
}

// heldUp reports whether err says that another writer, such as a handler, kept the only turn to write. nil keeps none.
func (s *Store) heldUp(err error) bool {
	return s != nil && s.dialect.OneWriter && (errors.Is(err, context.DeadlineExceeded) || dialect.Classify(err) == dialect.Contention)
}
