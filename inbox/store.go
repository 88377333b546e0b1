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
)

// Store is what the consumers of one service have seen, kept in the service's own
// database. It is safe for concurrent use. One Store serves all handlers of a process.
type Store struct {
	db        *database.DB
	rows      stored.Rows
	config    Config
	dialect   *dialect.Dialect
	log       watermill.LoggerAdapter
	observers observers
	debug     atomic.Bool // someone listens to what is said of each duplicate

	routersLog *steady.Later // what log hands on to without Config.Logger

	turns      turns.Turns // of keys
	aggregates turns.Turns // of aggregates
	advances   advances
	settled    *recent.Set
	versions   *recent.Set  // of aggregates, as they were applied last …
	reached    *recent.Set  // … and a version each that was applied, so that none above is before the beginning
	fetched    atomic.Int64 // payloads that the blob store gave
	unsealed   atomic.Int64 // payloads that the codec opened
	outage     outage.Breaker

	slotsOnce sync.Once
	slots     chan struct{}
	leaveSlot func()

	pauses atomic.Int64 // calls of Pause and Resume in this process

	identity atomic.Pointer[identity] // of the server, as it was last seen

	mu        sync.Mutex
	consumers map[stored.Name]*Consumer
	declared  map[string]remembering     // by consumer
	unwatched map[string]bool            // consumers whose StoreFirst queue here no observer hears of
	bells     map[stored.Name]*bell.Bell // of those whose stored messages are delivered here

	unattended unattended
	panics     atomic.Int64 // of the user's functions in the background

	unsettled settler
	stayed    atomic.Int64 // how many outcomes the last call of Redispatch left behind itself
	tallies   tallies
	work      background

	leasesOnce sync.Once
	leases     *Leases
}

// settledTTL bounds how long a settled key is believed without asking the database. It
// lies far below the smallest retention.
const settledTTL = 2 * time.Minute

// NewStore returns a Store on the service's own pool. It opens no connection, unless the
// driver does not say which database it is for. See [Config] for what may be set; all its
// problems are reported at once. A service that has a *sql.DB gives sqlx.NewDb(db, "pgx"), with the
// name of its driver: "pgx" and "postgres", "mysql", and "sqlite" and "sqlite3" are known.
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
		consumers: make(map[stored.Name]*Consumer),
		declared:  make(map[string]remembering),
		unwatched: make(map[string]bool),
		bells:     make(map[stored.Name]*bell.Bell),
	}
	logger := config.Logger
	if logger == nil {
		s.routersLog = steady.NewLater()
		logger = s.routersLog
	} else {
		_, silent := logger.(watermill.NopLogger)
		s.debug.Store(!silent)
	}
	s.log = steady.Logger(logger, func() { s.panics.Add(1) })
	pool.Lost = s.forget
	s.work.init()
	return s, nil
}

// Logger returns the logger of the Store, also before a router gave it one. It does not panic, should
// Config.Logger do so.
func (s *Store) Logger() watermill.LoggerAdapter { return s.log }

// slot waits for the right to hold a transaction.
func (s *Store) slot(ctx context.Context) (leave func(), err error) {
	if s.dialect.OneWriter {
		return s.db.Enter(ctx)
	}
	s.slotsOnce.Do(func() {
		s.slots = make(chan struct{}, s.maxInFlight())
		s.leaveSlot = func() { <-s.slots }
	})
	select {
	case s.slots <- struct{}{}:
		return s.leaveSlot, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *Store) maxInFlight() int {
	if s.config.MaxInFlight > 0 {
		return s.config.MaxInFlight
	}
	if pool := s.db.Stats().MaxOpenConnections; pool > 0 {
		return max(pool-1, 1)
	}
	return 32
}

// forget voids every cache: the server behind the next connection may have been restored
// to an earlier state.
func (s *Store) forget() {
	s.settled.Forget()
	s.versions.Forget()
	s.reached.Forget()
}
