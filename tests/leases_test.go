package tests_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
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
	must(t, b.leased(b.inbox(effect)), newMessage("x")) // outside is allowed
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
