package tests_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/lease"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/leasetest"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestLeases runs every behaviour of middleware.Deduplicate on every database.
func TestLeases(t *testing.T) {
	t.Parallel()
	var bodies []testdb.Body
	for _, b := range leasetest.Bodies {
		bodies = append(bodies, testdb.Body{Name: b.Name, Why: b.Why, Run: func(t *testing.T, db *testdb.DB) {
			b.Run(t, leaseStores(t, db))
		}})
	}
	testdb.Conformance(t, append(bodies, leaseBodies...))
}

// TestLeasesWithClientFoundRows runs them where an update counts rows that it did not change.
func TestLeasesWithClientFoundRows(t *testing.T) {
	t.Parallel()
	leasetest.Run(t, func(t *testing.T) leasetest.Open {
		return leaseStores(t, testdb.On(t, "mysql", testdb.Params("clientFoundRows", "true")))
	})
}

// leaseStores returns stores with a pool each, as processes have them.
func leaseStores(t *testing.T, db *testdb.DB) leasetest.Open {
	t.Helper()
	store := rig.NewStore(t, db.DB, inbox.Config{})
	require.NoError(t, store.Migrate(t.Context()))
	return func(t *testing.T) lease.Store {
		t.Helper()
		store := rig.NewStore(t, db.Open(t).DB, inbox.Config{})
		return store.Leases().Store()
	}
}

var leaseBodies = []testdb.Body{
	{Name: "lease: apart from the inbox", Why: "a lease must not count as the inbox's claim, nor the other way round",
		Run: testdb.With(newBed, leasesApartFromInbox)},
	{Name: "lease: refused inside the inbox", Why: "what the inbox rolls back must not stay confirmed",
		Run: testdb.With(newBed, leaseInsideInbox)},
	{Name: "lease: refused outside of the inbox", Why: "what an inbox holds or parks comes back, and must not be confirmed by then",
		Run: testdb.With(newBed, leaseOutsideInbox)},
	{Name: "lease: a failure that is hidden", Why: "what has failed must not be confirmed", Run: testdb.With(newBed, leaseHidden)},
	{Name: "lease: a middleware that does not wait for the handler", Why: "what the handler has yet to do must not be confirmed",
		Run: testdb.With(newBed, leaseHasty)},
	{Name: "lease: Retry inside", Why: "there is no transaction, so its last run counts", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		runs := 0
		s := b.newService(failsFirst(&runs), b.deduplicate().Middleware, retry)
		assert.True(t, s.deliver(newMessage("x")))
		assert.Equal(t, 2, runs)
	})},
	{Name: "lease: InstantAck inside", Why: "it loses what the handler returns, which the log says", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		s := b.newService(func(*message.Message) ([]*message.Message, error) {
			return []*message.Message{newMessage("out")}, nil
		}, b.deduplicate().Middleware, middleware.InstantAck)
		s.published.FailWith(errBoom)
		assert.True(t, s.deliver(newMessage("x")))
		require.NoError(t, s.router.Close())
		assert.Equal(t, 1, b.logged("inbox: the message was acked before its key was confirmed"))
	})},
	{Name: "lease: Retry around a handler that nacks", Why: "the second try is not told of InstantAck", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		h := b.leased(func(msg *message.Message) ([]*message.Message, error) {
			msg.Nack()
			return nil, errBoom
		})
		msg := newMessage("x")
		rig.MustFail(t, h, msg, errBoom)
		assert.NotContains(t, rig.Failure(t, h, msg, "nacked before").Error(), "InstantAck")
	})},
	{Name: "lease: purged", Why: "leases that ended must not stay for ever", Run: testdb.With(newBed, leasesPurged)},
	{Name: "lease: key changed", Why: "another key would not know what was recorded under the old one",
		Run: testdb.With(newBed, leaseKeyChanged)},
	{Name: "lease: one connection", Why: "a lease must not wait for a second connection", Run: testdb.With(newBed, leasesOnOneConnection)},
	{Name: "lease: close", Why: "a handler's lease must be confirmed before the pool is closed", Run: testdb.With(newBed, leaseClose)},
}

// leased wraps a handler with leases of the bed's store.
func (b *bed) leased(h message.HandlerFunc, change ...func(*millrace.Deduplicate)) message.HandlerFunc {
	d := millrace.Deduplicate{Claims: b.store.Leases(), Consumer: "billing"}
	for _, c := range change {
		c(&d)
	}
	return d.Middleware(h)
}

// deduplicate is a Deduplicate for the handler of a service.
func (b *bed) deduplicate() millrace.Deduplicate {
	return millrace.Deduplicate{Claims: b.store.Leases()}
}

// failsFirst is a handler that fails in its first run.
func failsFirst(runs *int) message.HandlerFunc {
	return func(*message.Message) ([]*message.Message, error) {
		if *runs++; *runs == 1 {
			return nil, errBoom
		}
		return nil, nil
	}
}

func leaseHidden(t *testing.T, b *bed) {
	for name, inside := range map[string][]message.HandlerMiddleware{
		"PoisonQueue":               {poisonQueue(&rig.Publisher{})},
		"IgnoreErrors":              {middleware.NewIgnoreErrors([]error{errBoom}).Middleware},
		"PoisonQueue and Recoverer": {poisonQueue(&rig.Publisher{}), middleware.Recoverer},
	} {
		runs, got := 0, make(chan error, 2)
		h := failsFirst(&runs)
		if len(inside) > 1 {
			h = func(msg *message.Message) ([]*message.Message, error) {
				if _, err := failsFirst(&runs)(msg); err != nil {
					panic(err)
				}
				return nil, nil
			}
		}
		s := b.newService(h, append([]message.HandlerMiddleware{tells(got), b.deduplicate().Middleware}, inside...)...)
		msg := newMessage("x")
		assert.False(t, s.deliver(again(msg)), name)
		require.ErrorIs(t, <-got, inbox.ErrSwallowed, name)
		assert.True(t, s.deliver(again(msg)), name)
		assert.True(t, s.deliver(again(msg)), name)
		assert.Equal(t, 2, runs, name)
	}
}

func leaseHasty(t *testing.T, b *bed) {
	got, entered, goOn := make(chan error, 1), make(chan struct{}), make(chan struct{})
	s := b.newService(func(*message.Message) ([]*message.Message, error) {
		close(entered)
		<-goOn
		return nil, nil
	}, tells(got), b.deduplicate().Middleware, func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			rig.Handle(h, msg)
			<-entered
			return nil, nil
		}
	})
	assert.False(t, s.deliver(newMessage("x")))
	err := <-got
	close(goOn)
	require.ErrorIs(t, err, inbox.ErrSwallowed)
	require.ErrorContains(t, err, "it returned before the handler did")
}

func leasesApartFromInbox(t *testing.T, b *bed) {
	runs := 0
	leased := b.leased(func(*message.Message) ([]*message.Message, error) { runs++; return nil, nil },
		func(d *millrace.Deduplicate) { d.Key = inbox.ByPayload() })
	msg := newMessage("x")
	for range 2 {
		must(t, leased, again(msg))
		must(t, b.inbox(effect), again(msg)) // another key for the same name is no change of the key
	}
	assert.Equal(t, 1, runs)
	assert.Equal(t, 1, b.effects())

	_, err := b.store.Handler(inbox.ConsumerConfig{Name: "\x00lease\x00billing"}, effectless)
	require.ErrorContains(t, err, "consumers of leases")
}

func leaseInsideInbox(t *testing.T, b *bed) {
	memory := inbox.NewLeases(&lease.Memory{}, inbox.LeasesConfig{})
	for _, claims := range []*inbox.Leases{b.store.Leases(), memory} {
		rig.MustFail(t, b.inbox(b.leased(effect, func(d *millrace.Deduplicate) { d.Claims = claims })), newMessage("x"), "inside middleware.Inbox")
	}
	assert.Equal(t, 0, b.effects())
}

func leaseOutsideInbox(t *testing.T, b *bed) {
	batch := millrace.Batch{Inbox: millrace.Inbox{Store: b.store, Consumer: "batches"}}
	for name, h := range map[string]message.HandlerFunc{
		"Inbox": b.inbox(effect),
		"Batch": func(msg *message.Message) ([]*message.Message, error) {
			return nil, batch.ConsumerHandler(func(context.Context, []*message.Message) error { panic("it ran") })(msg)
		},
		"a copy": func(msg *message.Message) ([]*message.Message, error) {
			return b.inbox(effect)(msg.CopyWithContext())
		},
	} {
		t.Log(name)
		rig.MustFail(t, b.leased(h), newMessage("x"), "outside of middleware.Inbox")
	}
	got := make(chan error, 1)
	s := b.newService(effect, tells(got), b.deduplicate().Middleware, millrace.VersionGate{Store: b.store, Optional: true}.Middleware)
	assert.False(t, s.deliver(newMessage("x")))
	require.ErrorContains(t, <-got, "outside of middleware.Inbox")
	assert.Equal(t, 0, b.effects())
	assert.Equal(t, 0, b.count(`SELECT COUNT(*) FROM millrace_leases`))
	must(t, b.leased(func(msg *message.Message) ([]*message.Message, error) {
		return b.inbox(effect)(message.NewMessageWithContext(msg.Context(), "mail", nil)) // another message
	}), newMessage("x"))
	assert.Equal(t, 1, b.effects())
}

func leasesPurged(t *testing.T, b *bed) {
	const short, long = 100 * time.Millisecond, time.Hour
	must(t, b.leased(effectless, func(d *millrace.Deduplicate) { d.Retention = long }), newMessage("stays"))
	must(t, b.leased(effectless, func(d *millrace.Deduplicate) { d.Retention = short }), newMessage("goes"))
	for began := time.Now(); b.count(`SELECT COUNT(*) FROM millrace_leases`) > 1; {
		rig.Purge(t, b.store)
		require.Less(t, time.Since(began), time.Minute)
	}
	rig.Purge(t, b.store)
	assert.Equal(t, 1, b.count(`SELECT COUNT(*) FROM millrace_leases`))
}

func leaseKeyChanged(t *testing.T, b *bed) {
	must(t, b.leased(effectless), newMessage("x"))
	restarted := b.newStore(b.db.Open(t).DB, inbox.Config{})
	byPayload := func(d *millrace.Deduplicate) { d.Claims, d.Key = restarted.Leases(), inbox.ByPayload() }
	rig.MustFail(t, b.leased(effectless, byPayload), newMessage("x"), inbox.ErrKeyChanged)
	must(t, b.leased(effectless, byPayload, func(d *millrace.Deduplicate) { d.Epoch = 1 }), newMessage("x"))
}

func leasesOnOneConnection(t *testing.T, b *bed) {
	store := b.newStore(b.db.Open(t, testdb.Pool(1)).DB, inbox.Config{})
	h := b.leased(effectless, func(d *millrace.Deduplicate) { d.Claims = store.Leases() })
	assert.Equal(t, 0, failures(2, func() error { _, err := h(newMessage("x")); return err })) // each has five seconds, its wait included
}

func leaseClose(t *testing.T, b *bed) {
	h, entered, leave := rig.Halted(effectless)
	done := rig.Handle(b.leased(h), newMessage("x"))
	<-entered
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorContains(t, b.store.Close(ended), "1 handlers are still running")
	rig.MustFail(t, b.leased(effectless), newMessage("y"), inbox.ErrClosed)
	leave()
	require.NoError(t, <-done)
	require.NoError(t, b.store.Close(t.Context()))
}
