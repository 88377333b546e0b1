package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/ambient"
	"github.com/millrace-go/millrace/internal/bell"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/outage"
	"github.com/millrace-go/millrace/internal/owned"
	"github.com/millrace-go/millrace/internal/recent"
	"github.com/millrace-go/millrace/internal/steady"
	"github.com/millrace-go/millrace/internal/turns"
	"github.com/millrace-go/millrace/internal/writers"
)

// Store is what the consumers of one service have seen, kept in the service's own
// database. It is safe for concurrent use. One Store serves all handlers of a process.
type Store struct {
	db      *sqlx.DB
	config  Config
	dialect *dialect.Dialect
	log     watermill.LoggerAdapter
	observe observers
	debug   bool // someone listens to what is said of each duplicate

	turns      turns.Turns // of keys
	aggregates turns.Turns // of aggregates
	advances   advances
	settled    *recent.Set
	versions   *recent.Set  // of aggregates, as they were applied last …
	reached    *recent.Set  // … and a version each that was applied, so that none above is before the beginning
	fetched    atomic.Int64 // payloads that the blob store gave
	unsealed   atomic.Int64 // payloads that the codec opened
	outage     outage.Breaker
	writers    writers.Queue // nil where writers do not exclude each other

	slotsOnce sync.Once
	slots     chan struct{}
	leaveSlot func()

	isolation  atomic.Pointer[sql.TxOptions] // what a claiming transaction asks for
	generation atomic.Int64                  // grows when a connection is lost: caches of older ones are void
	pauses     atomic.Int64                  // calls of Pause and Resume in this process

	identity atomic.Pointer[identity] // of the server, as it was last seen

	mu        sync.Mutex
	consumers map[consumerName]*Consumer
	declared  map[string]remembering      // by consumer
	unwatched map[string]bool             // consumers whose StoreFirst queue here no observer hears of
	bells     map[consumerName]*bell.Bell // of those whose stored messages are delivered here

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
// problems are reported at once.
func NewStore(db *sqlx.DB, config Config) (*Store, error) {
	if db == nil {
		return nil, errors.New("inbox: NewStore needs a *sqlx.DB")
	}
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	d, err := dialect.Of(db, config.Dialect, config.names())
	if err != nil {
		return nil, fmt.Errorf("inbox: %w", err)
	}
	s := &Store{
		db:        db,
		config:    config,
		dialect:   d,
		observe:   newObservers(config.Observers),
		settled:   recent.NewSet(config.SettledKeys, settledTTL),
		versions:  recent.NewSet(config.SettledKeys, settledTTL),
		reached:   recent.NewSet(config.SettledKeys, settledTTL),
		consumers: make(map[consumerName]*Consumer),
		declared:  make(map[string]remembering),
		unwatched: make(map[string]bool),
		bells:     make(map[consumerName]*bell.Bell),
	}
	s.log = steady.Logger(config.Logger, func() { s.panics.Add(1) })
	if s.dialect.OneWriter {
		s.writers = writers.Of(db.DB)
	}
	_, silent := config.Logger.(watermill.NopLogger)
	s.debug = !silent
	s.work.init()
	return s, nil
}

// Logger returns the logger of the Store. It does not panic, should Config.Logger do so.
func (s *Store) Logger() watermill.LoggerAdapter { return s.log }

// slot waits for the right to hold a transaction.
func (s *Store) slot(ctx context.Context) (leave func(), err error) {
	if s.writers != nil {
		return s.writers.Enter(ctx)
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

func (s *Store) enterWriters(ctx context.Context) (leave func(), err error) {
	if s.writers == nil {
		return func() {}, nil
	}
	return s.writers.Enter(ctx)
}

// begin starts a transaction at READ COMMITTED, asking for it only where the connection's
// default differs: on some drivers asking is a round trip of its own.
func (s *Store) begin(ctx context.Context) (*owned.Tx, error) {
	options := s.isolation.Load()
	if options == nil {
		var err error
		if options, err = s.probeIsolation(ctx); err != nil {
			return nil, err
		}
		s.isolation.Store(options)
	}
	return owned.Begin(ctx, s.db, options, s.dialect.OneWriter)
}

func (s *Store) probeIsolation(ctx context.Context) (*sql.TxOptions, error) {
	if s.dialect.OneWriter {
		return &sql.TxOptions{}, nil
	}
	rows, err := s.db.QueryContext(ctx, s.dialect.SelectIsolation)
	if err != nil {
		return nil, fmt.Errorf("ask for the isolation level: %w", err)
	}
	defer rows.Close() //nolint:errcheck // rows.Err tells
	var name, level string
	for rows.Next() {
		if err := rows.Scan(&name, &level); err != nil {
			return nil, fmt.Errorf("ask for the isolation level: %w", err)
		}
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("ask for the isolation level: %w", err)
	}
	if strings.EqualFold(strings.ReplaceAll(level, "-", " "), "read committed") {
		return &sql.TxOptions{}, nil
	}
	return &sql.TxOptions{Isolation: sql.LevelReadCommitted}, nil
}

// write runs work in a short transaction of its own, again after a deadlock or lock wait.
// In a handler's context it runs in the handler's transaction instead and never waits for
// a second connection. The first statement of work must write.
func (s *Store) write(ctx context.Context, work func(tx *sqlx.Tx) error) error {
	if tx, live := ambient.From(ctx).Live(s.db); live {
		return work(tx)
	}
	leave, err := s.enterWriters(ctx)
	if err != nil {
		return err
	}
	defer leave()
	return s.writeInSlot(ctx, work)
}

// writeInSlot is write for one who holds a slot, which is the writer's turn.
func (s *Store) writeInSlot(ctx context.Context, work func(tx *sqlx.Tx) error) error {
	for try := 0; ; try++ {
		err := s.transact(ctx, work)
		if err == nil || dialect.Classify(err) != dialect.Contention || try >= maxContention {
			return s.noticeLoss(err)
		}
		if err := pause(ctx, try); err != nil {
			return err
		}
	}
}

func (s *Store) transact(ctx context.Context, work func(tx *sqlx.Tx) error) error {
	tx, err := s.begin(ctx)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // for a panic; else it has ended
	if err := work(tx.Tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// reader is what a query runs on: the handler's transaction in its context, else the pool.
func (s *Store) reader(ctx context.Context) sqlx.ExtContext {
	if tx, live := ambient.From(ctx).Live(s.db); live {
		return tx
	}
	return s.db
}

// noticeLoss forgets when err, of a statement of ours, says that a connection was lost.
func (s *Store) noticeLoss(err error) error {
	switch dialect.Classify(err) {
	case dialect.Unavailable, dialect.Unready, dialect.ReadOnly: // read-only: a primary that was demoted
		s.forget()
	}
	return err
}

// forget voids every cache: the server behind the next connection may have been restored
// to an earlier state.
func (s *Store) forget() {
	s.generation.Add(1)
	s.settled.Forget()
	s.versions.Forget()
	s.reached.Forget()
	s.isolation.Store(nil)
}

// maxContention is how often one of our own statements is tried again after a deadlock.
const maxContention = 20

// pause waits a little, longer with each try and never twice the same.
func pause(ctx context.Context, try int) error {
	longest := time.Millisecond << min(try, 7)
	timer := time.NewTimer(rand.N(longest)) //nolint:gosec // jitter needs no secrecy
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// explain adds the way out to errors of the database that have one.
func explain(err error) error {
	switch dialect.Classify(err) {
	case dialect.NoTable:
		return fmt.Errorf("%w: %w", ErrNotMigrated, err)
	case dialect.ReadOnly:
		return fmt.Errorf("%w: %w", ErrReadOnly, err)
	case dialect.Unavailable, dialect.Unready:
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return err
}
