package durable_test

import (
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestACodecThatLosesADeadlock: the codec writes in the transaction that stores the message, and repeats its statement
// after a deadlock. MySQL and MariaDB have rolled everything back by then, and commit the repeated statement by itself.
func TestACodecThatLosesADeadlock(t *testing.T) {
	testdb.Conformance(t, deadlockBodies)
}

// withUnlucky returns a body for MySQL and MariaDB: PostgreSQL refuses the repeated statement, and SQLite has no deadlocks.
func withUnlucky(body func(t *testing.T, b *bed, u *faults.Unlucky, store *inbox.Store)) func(*testing.T, *testdb.DB) {
	return func(t *testing.T, db *testdb.DB) {
		if db.Dialect != "mysql" {
			return
		}
		b, u := newBed(t, db), faults.NewUnlucky(t, db)
		body(t, b, u, b.storeWith(inbox.Config{Payloads: u}))
	}
}

// routed runs handle in a router, and returns what delivers a copy of a message to it: its error, and whether it was acked.
func (b *bed) routed(handle message.HandlerFunc) (deliver func(*message.Message) (acked bool, err error)) {
	b.Helper()
	feed, router, errs := rig.NewFeed(), rig.NewRouter(b), make(chan error, 1)
	router.AddHandler(consumer, "orders", feed, "invoices", &rig.Publisher{}, func(msg *message.Message) ([]*message.Message, error) {
		out, err := handle(msg)
		errs <- err
		return out, err
	})
	rig.Run(b, router)
	return func(msg *message.Message) (bool, error) {
		c := msg.Copy()
		feed.Send(b, c)
		err := <-errs
		return rig.Answer(b, c), err
	}
}

var deadlockBodies = []testdb.Body{
	{Name: "before the commit of a handler", Why: "the run is undone, and the message is not acked", Run: withUnlucky(func(t *testing.T, b *bed, u *faults.Unlucky, store *inbox.Store) {
		for name, handler := range map[string]message.HandlerFunc{
			"results": silent(func(msg *message.Message) error {
				return errors.Join(effect(msg), inbox.SetResult(msg.Context(), secret))
			}),
			"outcomes": func(msg *message.Message) ([]*message.Message, error) {
				return []*message.Message{of("bob", "invoice")}, effect(msg)
			},
			"journal": silent(effect),
		} {
			deliver := b.routed(millrace.Inbox{Store: store, Options: inbox.Options{Journal: name == "journal"}}.Middleware(handler))
			msg := of("alice", "order")
			kept := func() int { return b.count(`SELECT COUNT(*) FROM millrace_` + name) }
			u.Loses.Store(true)
			acked, err := deliver(msg)
			require.ErrorIs(t, err, inbox.ErrTxEndedByHandler, name)
			assert.False(t, acked, name)
			assert.Zero(t, b.effects(msg), name)
			assert.Zero(t, kept(), name)
			acked, err = deliver(msg)
			require.NoError(t, err, name)
			assert.True(t, acked, name)
			assert.Equal(t, 1, b.effects(msg), name)
			_, err = deliver(msg)
			require.NoError(t, err, name)
			assert.Equal(t, 1, b.effects(msg), name)
		}
		assert.Equal(t, 3, b.count(`SELECT COUNT(*) FROM millrace_claims`))
	})},
	{Name: "where a message is held", Why: "what it waits for releases it", Run: withUnlucky(func(t *testing.T, b *bed, u *faults.Unlucky, store *inbox.Store) {
		s := b.start(quick(store), silent(effect), millrace.Inbox{Store: store}.Middleware, millrace.VersionGate{OnGap: inbox.GapHold}.Middleware)
		first, second := stamped("7", 1), stamped("7", 2)
		u.Loses.Store(true)
		assert.True(t, s.deliver(second))
		assert.False(t, u.Loses.Load())
		rig.Eventually(t, "it waits, with a claim", func() bool {
			return b.open(admin.Held) == 1 && b.count(`SELECT COUNT(*) FROM millrace_claims WHERE result = 0`) == 1
		})
		assert.True(t, s.deliver(first))
		rig.Eventually(t, "both are applied", func() bool { return b.effects(first) == 1 && b.effects(second) == 1 && b.rows() == 0 })
	})},
	{Name: "where a message is parked", Why: "it is not acked, and no row stands there without its claim", Run: withUnlucky(func(t *testing.T, b *bed, u *faults.Unlucky, store *inbox.Store) {
		deliver := b.routed(millrace.Inbox{Store: store}.Middleware(silent(effect)))
		msg := of("alice", "order")
		_, err := deliver(msg)
		require.NoError(t, err)
		u.Loses.Store(true)
		acked, err := deliver(another(msg))
		require.ErrorIs(t, err, inbox.ErrLost)
		assert.False(t, acked)
		assert.Zero(t, b.rows())
		acked, err = deliver(another(msg))
		require.NoError(t, err)
		assert.True(t, acked)
		assert.Equal(t, "another", string(b.only(store, admin.Parked).Payload))
		assert.Equal(t, 1, b.count(`SELECT COUNT(*) FROM millrace_claims WHERE result = 0`))
	})},
	{Name: "where a failure is recorded", Why: "the row has its claim", Run: withUnlucky(func(t *testing.T, b *bed, u *faults.Unlucky, store *inbox.Store) {
		runs := &counter{}
		deliver := b.routed(millrace.Inbox{Store: store, Options: inbox.Options{RecordFailures: true}}.Middleware(silent(func(msg *message.Message) error {
			if runs.run(msg) < 3 {
				return errBoom
			}
			return effect(msg)
		})))
		msg := of("alice", "order")
		u.Loses.Store(true)
		for range 2 {
			_, err := deliver(msg)
			require.ErrorIs(t, err, errBoom)
			assert.Equal(t, 1, b.open(admin.FailedRetryable))
			assert.Equal(t, 1, b.count(`SELECT COUNT(*) FROM millrace_claims WHERE result = 0`))
		}
		assert.Equal(t, 2, b.only(store, admin.FailedRetryable).Attempts)
		_, err := deliver(msg)
		require.NoError(t, err)
		assert.Equal(t, 1, b.effects(msg))
		assert.Zero(t, b.rows())
	})},
	{Name: "where a claim is taken back", Why: "a handler that committed by itself and failed runs again", Run: withUnlucky(func(t *testing.T, b *bed, u *faults.Unlucky, store *inbox.Store) {
		runs := &counter{}
		deliver := b.routed(millrace.Inbox{Store: store}.Middleware(silent(func(msg *message.Message) error {
			tx, err := inbox.Tx(msg.Context())
			if err == nil && runs.run(msg) == 1 {
				err = errors.Join(tx.Commit(), errBoom)
			}
			return err
		})))
		msg := of("alice", "order")
		u.Loses.Store(true)
		_, err := deliver(msg)
		require.ErrorIs(t, err, inbox.ErrTxEndedByHandler)
		assert.False(t, u.Loses.Load())
		_, err = deliver(msg)
		require.NoError(t, err)
		assert.Equal(t, 2, runs.of(msg))
		assert.Zero(t, b.rows())
	})},
}
