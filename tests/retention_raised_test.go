package tests_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func remembers(d time.Duration) func(*millrace.Inbox) {
	return func(i *millrace.Inbox) { i.Retention = d }
}

func (b *bed) claims() int {
	b.Helper()
	return b.count(`SELECT COUNT(*) FROM millrace_claims`)
}

// A longer Retention counts before the first message comes, for the janitors of other processes too: what the shorter
// one would have forgotten is a duplicate.
func TestARaisedRetentionCountsFromTheStart(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		for _, raised := range []time.Duration{30 * day, inbox.Forever} {
			msg := newMessage("x")
			must(t, b.inbox(effect), again(msg))
			b.age(8 * day)
			next := millrace.Inbox{Store: b.process(), Consumer: "billing", Options: inbox.Options{Retention: raised}}
			require.NoError(t, next.Verify(t.Context(), "billing"))
			b.purge(0) // by the process that has 7 days
			assert.Zero(t, rig.Purge(t, next.Store))
			must(t, next.Middleware(effect), again(msg))
			assert.Equal(t, 1, b.effectsOf(msg.UUID), raised)

			b.exec(`DELETE FROM millrace_claims`)
			b.exec(`UPDATE millrace_consumers SET retention = ?`, (7 * day).Microseconds())
		}
	}))
}

// Without a router a handler is wrapped, and nothing is verified: the janitor of its process knows.
func TestARaisedRetentionCountsForTheJanitorOfAWrappedHandler(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		must(t, b.inbox(effect), newMessage("x"))
		b.age(8 * day)
		next := b.process()
		_, err := next.Handler(inbox.ConsumerConfig{Name: "billing", Options: inbox.Options{Retention: 30 * day}}, effect)
		require.NoError(t, err)
		assert.Zero(t, rig.Purge(t, next))
		b.purge(1)
	}))
}

// The first sweep of a router's plugin goes by the longer retention.
func TestARaisedRetentionCountsForTheFirstSweep(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		must(t, b.inbox(effect), newMessage("x"))
		b.age(8 * day)
		swept := make(chan int, 1)
		store := b.newStore(b.db.DB, inbox.Config{PurgeInterval: time.Hour, Observers: []inbox.Observer{
			inbox.On(func(_ context.Context, e inbox.Event) { swept <- e.Count }, inbox.KindPurged),
		}})
		router := rig.NewRouter(t)
		millrace.Inbox{Store: store, Options: inbox.Options{Retention: 30 * day}}.AddTo(router)
		router.AddHandler("billing", "orders", rig.NewFeed(), "invoices", &rig.Publisher{}, effect)
		rig.Run(t, router)
		assert.Zero(t, rig.Within(t, swept, "the janitor did not sweep"))
		assert.Equal(t, 1, b.claims())
	}))
}

// A shorter Retention counts from the first message on: until then the start may have been a mistake.
func TestALoweredRetentionCountsFromTheFirstMessage(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		for _, before := range []time.Duration{30 * day, inbox.Forever} {
			must(t, b.inbox(effect, remembers(before)), newMessage("x"))
			b.age(8 * day)
			next := millrace.Inbox{Store: b.process(), Consumer: "billing"}
			require.NoError(t, next.Verify(t.Context(), "billing"))
			assert.Zero(t, rig.Purge(t, next.Store), before)
			must(t, next.Middleware(effect), newMessage("y"))
			assert.Equal(t, 1, rig.Purge(t, next.Store), before)
			b.exec(`DELETE FROM millrace_claims`)
			b.store = b.process()
		}
	}))
}

// A process that has started before the longer Retention came lowers nothing, whenever its first message comes.
func TestTheFirstMessageOfAnEarlierProcessLowersNoRetention(t *testing.T) {
	t.Parallel()
	for name, known := range map[string]bool{"a known consumer": true, "a new one": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
				if known {
					must(t, b.inbox(effect, on(b.process())), newMessage("x"))
				}
				earlier := millrace.Inbox{Store: b.store, Consumer: "billing"}
				require.NoError(t, earlier.Verify(t.Context(), "billing"))
				next := millrace.Inbox{Store: b.process(), Consumer: "billing", Options: inbox.Options{Retention: 30 * day}}
				require.NoError(t, next.Verify(t.Context(), "billing"))
				must(t, next.Middleware(effect), newMessage("y"))

				must(t, earlier.Middleware(effect), newMessage("z"))
				b.age(8 * day)
				assert.Zero(t, rig.Purge(t, b.process()))
				require.NoError(t, earlier.Verify(t.Context(), "billing"))
				must(t, earlier.Middleware(effect), newMessage("of another router"))
				assert.Zero(t, rig.Purge(t, b.process()))
			}))
		})
	}
}

// While a process of the last release still runs, it may lose its connection, and reads the consumer's row again.
func TestALostConnectionLowersNoRetention(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage("x")
		pool := faults.Open(t, b.db)
		last := b.inbox(effect, on(b.newStore(pool.DB, inbox.Config{})))
		must(t, last, again(msg))
		must(t, b.inbox(effect, on(b.process()), remembers(30*day)), newMessage("y"))

		pool.Set(faults.Plan{Before: faults.Lose(faults.Begin)})
		rig.MustFail(t, last, newMessage("z"), inbox.ErrUnavailable)
		pool.Set(faults.Plan{})
		must(t, last, newMessage("z"))
		b.age(8 * day)
		assert.Zero(t, rig.Purge(t, b.process()))
	}))
}

// A walk through many claims takes long: a retention that is raised meanwhile counts for the rest of it.
func TestARetentionThatIsRaisedDuringAWalk(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		must(t, b.inbox(effect), newMessage("x"))
		b.fill(700)
		b.age(8 * day)
		store := b.newStore(b.db.DB, inbox.Config{Archive: func(ctx context.Context, _ []inbox.ExpiredClaim) error {
			return rig.Exec(ctx, `UPDATE millrace_consumers SET retention = ?`, (30 * day).Microseconds())
		}})
		assert.Equal(t, 500, rig.Purge(t, store))
		assert.Zero(t, rig.Purge(t, store))
		assert.Equal(t, 201, b.claims())
	}))
}
