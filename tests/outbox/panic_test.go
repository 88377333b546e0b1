package outbox_test

import (
	"context"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestPanicConformance(t *testing.T) {
	t.Parallel()
	testdb.Conformance(t, panicBodies)
}

var panicBodies = []testdb.Body{
	{
		Name: "a function of the service that panics in a relay", Why: "no message is lost, and none waits for another's",
		Run: func(t *testing.T, db *testdb.DB) {
			p := newPost(t, db)
			var plays []func()
			for _, name := range slices.Sorted(maps.Keys(trippedRelays)) {
				for _, how := range slices.Sorted(maps.Keys(trips)) {
					plays = append(plays, func() { p.outlives(name+" "+how, trips[how], trippedRelays[name]) })
				}
			}
			for _, play := range testdb.Sample(t, 4, plays) {
				play()
			}
		},
	},
	// has the driver panic at each statement of a relay once. database/sql loses the
	// connection of a query that panics.
	{Name: "a statement that panics in a relay", Why: "it is one that failed, and the process goes on", Run: func(t *testing.T, db *testdb.DB) {
		p, pool := newPost(t, db), faults.Open(t, db)
		pool.SetMaxOpenConns(50)
		var known sync.Map
		var panics atomic.Int64
		pool.Set(faults.Plan{Before: func(_ context.Context, call string) error {
			if _, seen := known.LoadOrStore(call, true); !seen {
				panics.Add(1)
				panic(call)
			}
			return nil
		}})
		relay := p.relayOn(pool.DB, p.broker, func(c *outbox.RelayConfig) {
			c.MinBackoff, c.MaxBackoff, c.Lease = time.Millisecond, 10*time.Millisecond, 10*time.Second
		})
		r := start(t, relay)
		for range 5 {
			p.broker.awaitAll(t, p.send("orders", "k", 2))
		}
		rig.Eventually(p, "it extends its lease", func() (extended bool) {
			known.Range(func(call, _ any) bool { extended = says(call.(string), beats...); return !extended })
			return extended
		})
		rig.Eventually(p, "the outbox is empty", func() bool { return p.rows() == 0 })
		_ = r.stop() // the first statement by which it leaves panics
		assert.Greater(t, panics.Load(), int64(10))
		assert.LessOrEqual(t, panics.Load(), relay.Panics()+1)
	}},
}

// trips are how a function of the service ends without returning.
var trips = map[string]func(){
	"panics": func() { panic("a function of the service") },
	"exits":  runtime.Goexit,
}

// trap is a trip, and how often it was taken.
type trap struct {
	trip  func()
	taken atomic.Int64
}

func (t *trap) take() {
	t.taken.Add(1)
	t.trip()
}

var trippedRelays = map[string]func(c *outbox.RelayConfig, b *memoryBroker, trip *trap){
	"Publish": func(_ *outbox.RelayConfig, b *memoryBroker, trip *trap) {
		b.refuse = func(_ string, msg *message.Message) error {
			if string(msg.Payload) == bad {
				trip.take()
			}
			return nil
		}
	},
	"Error": func(_ *outbox.RelayConfig, b *memoryBroker, trip *trap) {
		b.refuse = func(_ string, msg *message.Message) error {
			if string(msg.Payload) == bad {
				return trippedError{trip}
			}
			return nil
		}
	},
	"published": observing(outbox.KindPublished), "attempt": observing(outbox.KindAttempt), "parked": observing(outbox.KindParked),
	"outage": observing(outbox.KindOutage), "shards": observing(outbox.KindShards), "purged": observing(outbox.KindPurged),
}

// trippedError is an error with which nothing can be done.
type trippedError struct{ *trap }

func (e trippedError) Error() string { e.take(); return "" }

func observing(kind outbox.Kind) func(*outbox.RelayConfig, *memoryBroker, *trap) {
	return func(c *outbox.RelayConfig, _ *memoryBroker, trip *trap) {
		c.Observers = []outbox.Observer{loud(kind, trip)}
	}
}

// loud trips where it is told of an event of its kind.
func loud(kind outbox.Kind, trip *trap) outbox.Observer {
	return outbox.On(func(context.Context, outbox.Event) { trip.take() }, kind)
}

// bad is the payload of a message that the broker refuses.
const bad = "bad"

// outlives has a relay send good messages beside bad ones, which are parked. A second observer hears
// of everything.
func (p *post) outlives(name string, trip func(), set func(*outbox.RelayConfig, *memoryBroker, *trap)) {
	p.Helper()
	pool := p.db.Open(p)
	pool.SetMaxOpenConns(3)
	defer pool.Close() //nolint:errcheck // the test is over
	broker, taken, log, seen := newMemoryBroker(), &trap{trip: trip}, &logbook{}, &events{}
	broker.refuse = func(_ string, msg *message.Message) error {
		if string(msg.Payload) == bad {
			return errRefused
		}
		return nil
	}
	relay := p.relayOn(pool.DB, broker, func(c *outbox.RelayConfig) {
		c.Logger, c.MinBackoff, c.MaxBackoff, c.MaxAttempts = log, time.Millisecond, 10*time.Millisecond, 2
		set(c, broker, taken)
	}, seen.observe)
	poison := []*message.Message{message.NewMessage(watermill.NewUUID(), []byte(bad)), message.NewMessage(watermill.NewUUID(), []byte(bad))}
	poison[0].Metadata.Set("key", name)
	ids := p.store("orders", poison...)
	running := start(p.T, relay)
	rig.Eventually(p, name+": nothing gets through", func() bool { return len(seen.of("outage")) > 0 })
	broker.awaitAll(p, p.send("orders", "good", 2))
	for p.row(ids[0]).Status != rowParked || p.row(ids[1]).Status != rowParked {
		broker.awaitAll(p, p.send("orders", "", 1))
	}
	behind := p.send("orders", name, 1)
	broker.awaitAll(p, p.send("orders", "good", 2))
	rig.Eventually(p, name+": sent messages are deleted", func() bool { return p.rows() == 3 })
	require.NoError(p, running.stop(), name)

	assert.NotZero(p, taken.taken.Load(), name)
	assert.Equal(p, taken.taken.Load(), relay.Panics(), name)
	assert.True(p, log.has("a function of the service panicked in the relay, which goes on"), name)
	for _, kind := range []string{"published", "attempt", "parked", "outage", "shards", "purged"} {
		assert.NotEmpty(p, seen.of(kind), "%s: %s", name, kind)
	}
	assert.Equal(p, map[string]int{"": shards}, p.owners(), "%s: nobody has a shard", name)
	assert.Eventually(p, func() bool { return pool.Stats().InUse == 0 }, rig.Patience, time.Millisecond, name)

	for _, parked := range p.parked() {
		require.NoError(p, p.out.Discard(p.Context(), parked.ID, outbox.Operator{Name: "ada", Reason: "it is bad"}))
	}
	next := p.relayTo(broker)
	broker.awaitAll(p, behind)
	rig.Eventually(p, name+": the outbox is empty", func() bool { return p.rows() == 0 })
	require.NoError(p, next.stop(), name)
}

// loudLogger panics at each line, and at With.
type loudLogger struct{ *trap }

func (l loudLogger) Error(string, error, watermill.LogFields)         { l.take() }
func (l loudLogger) Info(string, watermill.LogFields)                 { l.take() }
func (l loudLogger) Debug(string, watermill.LogFields)                { l.take() }
func (l loudLogger) Trace(string, watermill.LogFields)                { l.take() }
func (l loudLogger) With(watermill.LogFields) watermill.LoggerAdapter { l.take(); return l }

func TestALoggerThatPanicsEndsNoRelay(t *testing.T) {
	t.Parallel()
	for how, trip := range trips {
		t.Run(how, func(t *testing.T) {
			p, trip, seen := newPost(t, testdb.On(t, "sqlite")), &trap{trip: trip}, &events{}
			ids := p.send("orders", "k", 2)
			p.broker.refusing(refuses(errRefused, ids[0]))
			r := p.relay(func(c *outbox.RelayConfig) { c.Logger = loudLogger{trip}; seen.observe(c) })
			rig.Eventually(p, "an outage is told of", func() bool { return len(seen.of("outage")) > 2 })
			p.broker.refusing(nil)
			p.broker.awaitAll(t, ids)
			rig.Eventually(p, "the outbox is empty", func() bool { return p.rows() == 0 })
			assert.Len(t, p.owners(), 1, "one relay has all shards")
			require.NoError(t, r.stop())
			assert.Equal(t, trip.taken.Load(), r.Panics())
			assert.Len(t, seen.of("shards"), 2, "it did not begin anew: it got them, and has none in the end")
			assert.Equal(t, map[string]int{"": shards}, p.owners())
		})
	}
}

func TestRelayBatchOutlivesAnObserver(t *testing.T) {
	t.Parallel()
	p := newPost(t, testdb.On(t, "sqlite"))
	p.send("orders", "k", 3)
	relay := p.newRelay(p.broker, func(c *outbox.RelayConfig) {
		c.Observers = []outbox.Observer{loud(outbox.KindPublished, &trap{trip: trips["panics"]})}
	})
	n, err := relay.RelayBatch(t.Context())
	require.NoError(t, err)
	assert.Equal(t, 3, n)
	assert.Zero(t, p.rows())
	assert.NotZero(t, relay.Panics())
	assert.Equal(t, map[string]int{"": shards}, p.owners())
}
