package tests_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/servers"
	"github.com/millrace-go/millrace/tests/testdb"
)

// outages are the ways in which a server goes away. SQLite has no server.
func outages(t *testing.T, body func(t *testing.T, db *testdb.DB, via string, begin, end func())) {
	t.Helper()
	launch := map[string]func(testing.TB, ...string) *servers.Server{"postgres": servers.Postgres, "mysql": servers.MariaDB}
	for _, name := range testdb.Sample(t, 1, []string{"postgres/killed", "postgres/cut", "mysql/killed", "mysql/cut"}) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dialect, how, _ := strings.Cut(name, "/")
			s := launch[dialect](t)
			via, begin, end := s.Addr(), s.Kill, s.Start
			if how == "cut" {
				wire := servers.Proxy(t, s.Addr())
				via, begin, end = wire.Addr(), wire.Cut, wire.Mend
			}
			body(t, testdb.At(t, dialect, s.DSN()), via, begin, end)
		})
	}
}

// The server goes away under the load of a broker that redelivers at once whatever is
// nacked. Deliveries are held back meanwhile, one at a time probes, and afterwards all are
// handled once.
func TestOutageUnderLoad(t *testing.T) {
	t.Parallel()
	const (
		inFlight = 16              // what the broker hands out at once
		lasts    = 4 * time.Second // in which the pauses between probes grow, and a storm would show
	)
	outages(t, func(t *testing.T, db *testdb.DB, via string, begin, end func()) {
		b := newBed(t, db)
		dials := dialing(t, db.Open(t, testdb.Via(via)))
		h := b.inbox(effect, on(b.newStore(dials.DB, inbox.Config{})))
		load := newLoad(h, inFlight)
		defer load.stop()
		rig.Eventually(b, "the load flows", func() bool { return load.acked.Load() > 50 })

		begin()
		delivered, began := load.deliveries.Load(), time.Now()
		rig.Eventually(b, "every delivery has met the outage", func() bool { return load.met.Load() == inFlight && dials.now.Load() == 0 })
		dialled := dials.begun.Load()
		dials.most.Store(0)
		<-time.After(lasts)
		rate := float64(load.deliveries.Load()-delivered) / time.Since(began).Seconds()
		probes, most := dials.begun.Load()-dialled, dials.most.Load()
		end()
		db.SetMaxIdleConns(0) // the test's own are broken too
		restored := load.acked.Load()
		rig.Eventually(b, "the load flows again", func() bool { return load.acked.Load() > restored+50 })
		load.stop()

		t.Logf("down for %v: %.1f deliveries/s; %d dials, %d at once; in all %d acked, %d nacked",
			lasts, rate, probes, most, load.acked.Load(), load.nacked.Load())
		assert.Less(t, rate, 50.0, "a nack storm")
		assert.LessOrEqual(t, most, int64(1), "more than one probe at a time")
		assert.LessOrEqual(t, probes, int64(8), "more dials than the pauses between probes allow")
		assert.Positive(t, load.unavailable.Load(), "nobody was told that the database is down")
		assert.Empty(t, load.others(), "errors that are not inbox.ErrUnavailable")
		for _, uuid := range load.done() {
			require.Equal(t, 1, b.effectsOf(uuid), "effects of %s", uuid)
		}
		assert.Equal(t, len(load.done()), b.effects())
	})
}

// What was known in memory is asked for again after a connection was lost: the server
// behind the next one may be an earlier state of it.
func TestOutageVoidsWhatIsRemembered(t *testing.T) {
	t.Parallel()
	outages(t, func(t *testing.T, db *testdb.DB, via string, begin, end func()) {
		b := newBed(t, db)
		h := b.inbox(effect, on(b.newStore(db.Open(t, testdb.Via(via)).DB, inbox.Config{})))
		msg := newMessage("x")
		must(t, h, again(msg))
		b.exec(`DELETE FROM millrace_claims`) // as a replica that lagged behind would have it
		b.exec(`DELETE FROM millrace_consumers`)
		must(t, h, again(msg))
		require.Equal(t, 1, b.effects(), "the copy was to be answered from memory")

		begin()
		rig.MustFail(t, h, newMessage("notices the loss"), inbox.ErrUnavailable)
		end()
		db.SetMaxIdleConns(0) // the test's own are broken too
		rig.Eventually(b, "the server is back", func() bool {
			_, err := h(newMessage("notices the return"))
			return err == nil
		})
		must(t, h, again(msg))
		assert.Equal(t, 2, b.effectsOf(msg.UUID), "the copy was answered by what was remembered")
		must(t, h, again(msg))
		assert.Equal(t, 2, b.effectsOf(msg.UUID))
		assert.Equal(t, 1, b.count(`SELECT COUNT(*) FROM millrace_consumers`))
	})
}

// load is a broker that hands out so many messages at a time, each again as soon as it is
// nacked, and a new one for each that is acked.
type load struct {
	handler                                message.HandlerFunc
	deliveries, acked, nacked, unavailable atomic.Int64
	met                                    atomic.Int64 // workers that were told inbox.ErrUnavailable
	stopping                               atomic.Bool
	workers                                sync.WaitGroup

	mu     sync.Mutex
	uuids  []string
	errors []error
}

func newLoad(h message.HandlerFunc, inFlight int) *load {
	l := &load{handler: h}
	for range inFlight {
		l.workers.Go(l.work)
	}
	return l
}

func (l *load) work() {
	met := false
	for !l.stopping.Load() {
		msg := newMessage("x")
		for !l.deliver(msg, &met) { // also while stopping: a message is not left in the middle
			continue
		}
	}
}

func (l *load) deliver(msg *message.Message, met *bool) (acked bool) {
	l.deliveries.Add(1)
	_, err := l.handler(again(msg))
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		l.acked.Add(1)
		l.uuids = append(l.uuids, msg.UUID)
		return true
	}
	l.nacked.Add(1)
	if errors.Is(err, inbox.ErrUnavailable) {
		l.unavailable.Add(1)
		if !*met {
			*met = true
			l.met.Add(1)
		}
	} else {
		l.errors = append(l.errors, err)
	}
	return false
}

func (l *load) stop() {
	l.stopping.Store(true)
	l.workers.Wait()
}

func (l *load) done() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.uuids)
}

func (l *load) others() []error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.errors
}

// dials is a pool that counts the connections it tries to open.
type dials struct {
	*sqlx.DB
	begun, now, most atomic.Int64
	driver           driver.Driver
	dsn              string
}

func dialing(t *testing.T, db *testdb.DB) *dials {
	t.Helper()
	d := &dials{driver: db.DB.Driver(), dsn: db.DSN}
	d.DB = sqlx.NewDb(sql.OpenDB(d), db.Driver)
	d.SetMaxOpenConns(10)
	d.SetMaxIdleConns(10)
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// Connect opens a connection. It takes a moment, so that two at once meet.
func (d *dials) Connect(context.Context) (driver.Conn, error) {
	d.begun.Add(1)
	now := d.now.Add(1)
	defer d.now.Add(-1)
	for most := d.most.Load(); now > most && !d.most.CompareAndSwap(most, now); most = d.most.Load() {
		continue
	}
	<-time.After(100 * time.Millisecond)
	return d.driver.Open(d.dsn)
}

// Driver returns what opens the connections.
func (d *dials) Driver() driver.Driver { return d.driver }

// A server that is frozen keeps its connections and answers nothing. Deliveries find that out wherever they meet it, count an
// outage, and are held back like in any other one.
func TestOutageOfAServerThatAnswersNothing(t *testing.T) {
	t.Parallel()
	usual := func(t *testing.T, db *testdb.DB) *faults.Faults { return faults.Open(t, db) }
	atOnce := func(_ *faults.Faults, wire *servers.Wire) { wire.Freeze() }
	for _, c := range []struct {
		name   string
		only   string // a dialect
		open   func(t *testing.T, db *testdb.DB) *faults.Faults
		freeze func(pool *faults.Faults, wire *servers.Wire)
		looks  bool
		says   string
	}{
		{name: "BEGIN", open: usual, freeze: atOnce, says: "has not answered"}, // a driver that sends it later meets it at the claim
		{name: "claim", open: usual, says: "nor the claim before it", freeze: func(pool *faults.Faults, wire *servers.Wire) {
			pool.Set(faults.Plan{Before: faults.At("INTO millrace_claims", func() error { wire.Freeze(); return nil })})
		}},
		{name: "look", open: usual, freeze: atOnce, looks: true, says: "before that: look up the claim"},
		{name: "dial", open: usual, says: "before that: context deadline exceeded: Timeout", freeze: func(pool *faults.Faults, wire *servers.Wire) {
			pool.SetMaxIdleConns(0)
			wire.Freeze()
		}},
		{name: "idle", only: "postgres", open: pinging, freeze: atOnce, says: "before that: context deadline exceeded: Timeout"},
	} {
		for _, name := range []string{"postgres", "mysql"} {
			if c.only != "" && c.only != name {
				continue
			}
			t.Run(c.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				db := testdb.On(t, name)
				wire, _ := servers.Before(t, db.DSN)
				b := newBed(t, db)
				pool := c.open(t, db.Open(t, testdb.Via(wire.Addr())))
				var found atomic.Int64
				store := b.newStore(pool.DB, inbox.Config{Observers: []inbox.Observer{
					inbox.On(func(context.Context, inbox.Event) { found.Add(1) }, inbox.KindOutage),
				}})
				h := b.inbox(effect, on(store), func(i *millrace.Inbox) {
					i.Timeout, i.TwinWait = 6*time.Second, 500*time.Millisecond
					i.Redelivered = func(*message.Message) bool { return c.looks }
				})
				before := newMessage("before")
				rig.Eventually(b, "its claim takes less than TwinWait", func() bool {
					_, err := h(again(before))
					return err == nil
				})

				found.Store(0) // of a claim that took longer
				c.freeze(pool, wire)
				msg := newMessage("during")
				rig.MustFail(t, h, msg, inbox.ErrUnavailable, c.says)
				assert.Equal(t, int64(1), found.Load())

				pool.Set(faults.Plan{})
				wire.Thaw()
				rig.Eventually(b, "the database serves again", func() bool {
					_, err := h(again(msg))
					return err == nil
				})
				assert.Equal(t, 1, b.effectsOf(msg.UUID))
			})
		}
	}
}

// pinging returns a pool of pgx's driver that asks each connection for an answer before it is used again, as it asks one that
// was idle for a second.
func pinging(t *testing.T, db *testdb.DB) *faults.Faults {
	t.Helper()
	config, err := pgx.ParseConfig(db.DSN)
	require.NoError(t, err)
	pool := &faults.Faults{DB: sqlx.NewDb(stdlib.OpenDB(*config, stdlib.OptionShouldPing(func(context.Context, stdlib.ShouldPingParams) bool {
		return true
	})), "pgx")}
	pool.SetMaxOpenConns(10)
	t.Cleanup(func() { _ = pool.Close() })
	return pool
}

// A server that answers nothing when a transaction ends keeps the message no longer than Timeout, and a moment.
func TestOutageAtTheEndOfATransaction(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"postgres", "mysql"} {
		for _, call := range []string{faults.Commit, faults.Rollback} {
			t.Run(name+"/"+call, func(t *testing.T) {
				t.Parallel()
				db := testdb.On(t, name)
				wire, _ := servers.Before(t, db.DSN)
				b := newBed(t, db)
				pool := faults.Open(t, db.Open(t, testdb.Via(wire.Addr())))
				pool.SetMaxOpenConns(1) // the connection is free again too
				fails := false
				h := b.inbox(func(msg *message.Message) ([]*message.Message, error) {
					if fails {
						return nil, errBoom
					}
					return effect(msg)
				}, on(b.newStore(pool.DB, inbox.Config{})), func(i *millrace.Inbox) { i.Timeout = 10 * time.Second })
				must(t, h, newMessage("before"))

				msg := newMessage("during")
				fails = call == faults.Rollback
				pool.Set(faults.Plan{Before: faults.At(call, func() error { wire.Freeze(); return nil })})
				require.Error(t, rig.Within(t, rig.Handle(h, again(msg)), "the end of the delivery"))

				pool.Set(faults.Plan{})
				fails = false
				wire.Thaw()
				rig.Eventually(b, "the database serves again", func() bool {
					_, err := h(again(msg))
					return err == nil
				})
				assert.Equal(t, 1, b.effectsOf(msg.UUID))
			})
		}
	}
}
