package relayproc

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	_ "github.com/go-sql-driver/mysql" // registers "mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // registers "pgx"
	"github.com/jmoiron/sqlx"
	_ "modernc.org/sqlite" // registers "sqlite"

	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/process"
)

// Main runs the relay and ends the process, if this process was started to be one.
// Otherwise it returns at once.
func Main() { process.As(name, serve) }

// relay is the process.
type relay struct {
	*process.Child
	settings Settings
	sql      *dialect.Outbox
	end      context.CancelFunc
	goOn     chan struct{}

	mu      sync.Mutex
	passed  int
	stopped bool
	aware   chan struct{} // closed when it may ask for its lease; nil for always

	replaces atomic.Bool // a transaction that replaces the shards of an earlier release is under way
	headed   atomic.Bool // a head was set aside, and nothing held back since
	tried    atomic.Bool // a head was set aside
	freed    atomic.Bool // something was written off since
}

func serve(c *process.Child, s Settings) error {
	r := &relay{Child: c, settings: s, goOn: make(chan struct{})}
	if s.Unaware {
		r.aware = make(chan struct{})
	}
	plain, err := sqlx.Open(s.Driver, s.DSN)
	if err != nil {
		return err
	}
	defer func() { _ = plain.Close() }() // it lent its driver only
	pool := faults.Over(plain, s.DSN)
	pool.SetMaxOpenConns(10)
	pool.SetMaxIdleConns(10)
	d, err := dialect.Of(pool.DB, "", dialect.Names{Prefix: dialect.DefaultPrefix})
	if err != nil {
		return err
	}
	r.sql = &d.Outbox
	to, err := dial(s.Broker, s.Name, r.reachWith)
	if err != nil {
		return err
	}
	moved, err := outbox.NewRelay(pool.DB, to, outbox.RelayConfig{
		Logger: watermill.NewStdLoggerWithOut(os.Stderr, false, false), Name: s.Name,
		Lease: s.Lease, Batch: s.Batch, Lanes: s.Lanes, Drain: 50 * time.Second, Poll: 100 * time.Millisecond,
		MinBackoff: 50 * time.Millisecond, MaxBackoff: 500 * time.Millisecond, Observers: []outbox.Observer{outbox.On(r.share, outbox.KindShards), outbox.On(r.published, outbox.KindPublished)},
	})
	if err != nil {
		return err
	}
	pool.Set(faults.Plan{Before: r.before, After: r.after})
	return errors.Join(r.run(moved, pool.DB), to.Close(), pool.Close())
}

// run relays until the test says close, or is gone.
func (r *relay) run(moved *outbox.Relay, db *sqlx.DB) error {
	ctx, end := context.WithCancel(context.Background())
	defer end()
	r.end = end
	traffic, err := NewTraffic(db, r.settings.Name)
	if err != nil {
		return err
	}
	var beside sync.WaitGroup
	beside.Go(func() { traffic.Run(ctx, r.settings.Traffic) })
	ended := make(chan error, 1)
	go func() { ended <- moved.Run(ctx) }()
	r.Say(process.Event{Kind: process.Ready})
	orders := make(chan error, 1)
	go func() { orders <- r.obey() }()
	select {
	case err = <-orders:
		end()
		err = errors.Join(err, <-ended)
	case err = <-ended:
	}
	beside.Wait()
	r.Closed(err, nil)
	return nil
}

// obey follows the test's orders until it says to close.
func (r *relay) obey() error {
	for {
		o, err := r.Order()
		if err != nil || o.Do == process.ToClose {
			return err
		}
		r.goOn <- struct{}{}
	}
}

// share tells the test.
func (r *relay) share(_ context.Context, e outbox.Event) {
	r.Say(process.Event{Kind: Share, Counts: map[string]int{"shards": e.Count}})
}

// published is told when a run of calls has ended.
func (r *relay) published(context.Context, outbox.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped && r.aware != nil {
		close(r.aware)
		r.aware = nil
	}
}

// askForLease waits while the relay is to be unaware of what became of its lease.
func (r *relay) askForLease() {
	r.mu.Lock()
	aware := r.aware
	if !r.stopped {
		aware = nil
	}
	r.mu.Unlock()
	if aware != nil {
		<-aware
	}
}

// reach stops where the relay is to stop, and tells it to end where it is to be told so.
func (r *relay) reach(point Point) { r.reachWith(point, nil) }

func (r *relay) reachWith(point Point, counts map[string]int) {
	if point == r.settings.End {
		r.end()
	}
	r.mu.Lock()
	here := point == r.settings.Stop && !r.stopped
	if here {
		r.passed++
		here = r.passed > r.settings.Skip
		r.stopped = here
	}
	r.mu.Unlock()
	if here {
		r.Say(process.Event{Kind: process.At, Point: process.Point(point), Counts: counts})
		<-r.goOn
	}
}
