package tests_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/lease"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// brittle is a store of leases of which a method panics for a bad message, before or after it did its work.
type brittle struct {
	lease.Store
	method, when string
	beats        chan struct{} // one for each call of Extend
}

func (b *brittle) trip(method, when string, key lease.Key) {
	if b.method == method && b.when == when && strings.Contains(key.ID, bad) {
		panic("a store of leases")
	}
}

func (b *brittle) Acquire(ctx context.Context, key lease.Key, token int64, d time.Duration) (lease.State, error) {
	b.trip("Acquire", "before", key)
	defer b.trip("Acquire", "after", key)
	return b.Store.Acquire(ctx, key, token, d)
}

func (b *brittle) Confirm(ctx context.Context, key lease.Key, token int64, retention time.Duration) error {
	b.trip("Confirm", "before", key)
	defer b.trip("Confirm", "after", key)
	return b.Store.Confirm(ctx, key, token, retention)
}

func (b *brittle) Release(ctx context.Context, key lease.Key, token int64) error {
	b.trip("Release", "before", key)
	defer b.trip("Release", "after", key)
	return b.Store.Release(ctx, key, token)
}

func (b *brittle) Extend(ctx context.Context, key lease.Key, token int64, d time.Duration) error {
	b.beats <- struct{}{}
	b.trip("Extend", "before", key)
	defer b.trip("Extend", "after", key)
	return b.Store.(lease.Extender).Extend(ctx, key, token, d)
}

// leasedRuns are what a handler without a transaction does with a bad message.
var leasedRuns = map[string]func(beats <-chan struct{}) ([]*message.Message, error){
	"succeeds": func(<-chan struct{}) ([]*message.Message, error) { return nil, nil },
	"fails":    func(<-chan struct{}) ([]*message.Message, error) { return nil, errBoom },
	"panics":   func(<-chan struct{}) ([]*message.Message, error) { panic("the handler") },
	"returns a nil pointer": func(<-chan struct{}) ([]*message.Message, error) {
		return nil, (*inbox.DeliveryError)(nil)
	},
	"produces": func(<-chan struct{}) ([]*message.Message, error) { return message.Messages{newMessage("y")}, nil },
	"outlives two heartbeats": func(beats <-chan struct{}) ([]*message.Message, error) {
		for range len(beats) { // of those before
			<-beats
		}
		<-beats
		<-beats
		return nil, nil
	},
}

// TestLeasesThatPanic has each method of a store of leases panic at each place where it is called.
func TestLeasesThatPanic(t *testing.T) {
	t.Parallel()
	b := newBed(t, testdb.On(t, "sqlite"))
	for _, method := range []string{"Acquire", "Confirm", "Release", "Extend"} {
		for _, when := range []string{"before", "after"} {
			for how, run := range leasedRuns {
				store := &brittle{Store: b.store.Leases().Store(), beats: make(chan struct{}, 1000), method: method, when: when}
				name := method + " panics " + when + ", the handler " + how
				b.leasesSurvive(name, inbox.NewLeases(store, inbox.LeasesConfig{}), false, func() ([]*message.Message, error) { return run(store.beats) })
			}
		}
	}
}

// TestObserversOfLeasesThatPanic has each observer and each function of middleware.Deduplicate panic.
func TestObserversOfLeasesThatPanic(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "sqlite")
	b := newBed(t, db)
	kinds := []string{"received", "completed", "failed", "duplicate", "replayed", "double effect", "Skip", "Key", "Logger"}
	for _, kind := range testdb.Sample(t, 3, kinds) {
		for how, run := range leasedRuns {
			if how == "outlives two heartbeats" {
				continue // nobody counts them here
			}
			for _, replays := range []bool{false, true} {
				config := inbox.Config{Observers: []inbox.Observer{loud{kind}}, WithoutPlugin: true}
				if kind == "Logger" {
					config.Logger = hoarse{}
				}
				name := kind + " panics, the handler " + how
				store := rig.NewStore(t, b.db.DB, config)
				do := func() ([]*message.Message, error) { return run(nil) }
				b.leasesSurvive(name, store.Leases(), replays, do, kind)
				ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
				require.NoError(t, store.Close(ctx), name)
				cancel()
				memory := inbox.NewLeases(&lease.Memory{Limit: 1}, inbox.LeasesConfig{Observers: config.Observers, Logger: config.Logger})
				b.leasesSurvive(name+", in memory", memory, replays, do, kind)
			}
		}
	}
}

// leasesSurvive has a bad message delivered, three times, and then a good one.
func (b *bed) leasesSurvive(
	name string, claims *inbox.Leases, replays bool, run func() ([]*message.Message, error), functions ...string,
) {
	b.Helper()
	var good atomic.Int32
	d := millrace.Deduplicate{Claims: claims, Consumer: name, Lease: 150 * time.Millisecond, Wait: 20 * time.Second}
	for _, f := range functions {
		switch f {
		case "Skip":
			d.Skip = func(msg *message.Message) bool { trip(msg); return false }
		case "Key":
			d.Key = inbox.ByFunc("id", func(msg *message.Message) (string, error) { trip(msg); return msg.UUID, nil })
		}
	}
	h := d.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		if string(msg.Payload) == bad {
			return run()
		}
		good.Add(1)
		return nil, nil
	})
	msg := message.NewMessage(bad+watermill.NewUUID(), []byte(bad))
	msg.Metadata.Set(bad, "yes")
	if replays {
		msg.Metadata.Set(inbox.ReplayField, "a replay")
	}
	for i := range 3 {
		c := again(msg)
		b.within(name, func() {
			_, err := h(c)
			assert.NotErrorIs(b, err, inbox.ErrInProgress, "%s: the lease ends, so a copy can have it", name)
		})
		if i == 0 {
			c.Ack()
		} else {
			c.Nack()
		}
	}
	b.within(name, func() {
		_, err := h(newMessage("good"))
		assert.NoError(b, err, name)
	})
	assert.EqualValues(b, 1, good.Load(), name)
}

// hoarse is a logger that panics, whatever it is to say.
type hoarse struct{}

func (hoarse) Error(string, error, watermill.LogFields)         { panic("a logger") }
func (hoarse) Info(string, watermill.LogFields)                 { panic("a logger") }
func (hoarse) Debug(string, watermill.LogFields)                { panic("a logger") }
func (hoarse) Trace(string, watermill.LogFields)                { panic("a logger") }
func (hoarse) With(watermill.LogFields) watermill.LoggerAdapter { panic("a logger") }

// TestAKeyIsFreeAfterAPanic: what took the key before it panicked gives it back, so that the
// redelivery need not wait for the end of the lease.
func TestAKeyIsFreeAfterAPanic(t *testing.T) {
	t.Parallel()
	b := newBed(t, testdb.On(t, "sqlite"))
	for _, c := range []struct {
		method, how string
	}{{"Acquire", "succeeds"}, {"Extend", "produces"}} {
		store := &brittle{Store: b.store.Leases().Store(), beats: make(chan struct{}, 1000), method: c.method, when: "after"}
		d := millrace.Deduplicate{
			Claims: inbox.NewLeases(store, inbox.LeasesConfig{}), Consumer: c.method, Lease: time.Hour, Wait: time.Millisecond,
		}
		h := d.Middleware(func(*message.Message) ([]*message.Message, error) { return leasedRuns[c.how](nil) })
		msg := message.NewMessage(bad+watermill.NewUUID(), nil)
		assert.Panics(t, func() { _, _ = h(again(msg)) }, c.method)
		store.method = ""
		_, err := h(again(msg))
		require.NoError(t, err, c.method)
	}
}

// TestAHeartbeatThatPanics is logged, and counted where the store is known; the handler goes on.
func TestAHeartbeatThatPanics(t *testing.T) {
	t.Parallel()
	b := newBed(t, testdb.On(t, "sqlite"))
	store := &brittle{Store: b.store.Leases().Store(), beats: make(chan struct{}, 1000), method: "Extend", when: "before"}
	claims := inbox.NewLeases(store, inbox.LeasesConfig{Logger: b.events})
	h := millrace.Deduplicate{Claims: claims, Consumer: "c", Lease: time.Second}.Middleware(
		func(msg *message.Message) ([]*message.Message, error) {
			_, err := leasedRuns["outlives two heartbeats"](store.beats)
			return nil, errors.Join(err, msg.Context().Err())
		})
	_, err := h(message.NewMessage(bad+watermill.NewUUID(), nil))
	require.NoError(t, err)
	assert.Positive(t, b.logged("inbox: a function panicked beside or after a handler; it goes on: panic: a store of leases"))
}
