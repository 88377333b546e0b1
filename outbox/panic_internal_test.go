package outbox

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// stumbling panics in the pump: at its first error about the broker.
type stumbling struct {
	watermill.NopLogger
	armed *atomic.Bool
}

func (s stumbling) Error(text string, _ error, _ watermill.LogFields) {
	if strings.HasPrefix(text, "outbox: nothing gets through") && s.armed.Swap(false) {
		panic("the pump")
	}
}

// bench is a relay whose pump panics while a message is with the broker.
type bench struct {
	*testing.T
	relay *Relay
	armed atomic.Bool
	held  chan []string // UUIDs of the call that is held
	open  chan struct{}
	given atomic.Int64 // calls with what is held
	ended chan error
}

func newBench(t *testing.T, config RelayConfig) *bench {
	t.Helper()
	config.Lanes, config.Lease = 2, 15*time.Second // which a busy machine extends in time
	b := &bench{T: t, held: make(chan []string, 1), open: make(chan struct{}), ended: make(chan error, 1)}
	b.relay = newTestRelay(t, config)
	b.armed.Store(true)
	b.relay.log = stumbling{armed: &b.armed}
	var first atomic.Pointer[string]
	b.relay.to = publishing(func(_ string, msgs ...*message.Message) error {
		if first.CompareAndSwap(nil, &msgs[0].UUID) {
			b.held <- nil
		}
		for _, m := range msgs {
			if m.UUID == *first.Load() {
				b.given.Add(1)
				<-b.open
				return nil
			}
		}
		if b.armed.Load() {
			return errRefused
		}
		return nil
	})
	out, err := NewPublisher(b.relay.db.DB, Config{Standalone: true})
	require.NoError(t, err)
	for range 40 {
		require.NoError(t, out.Publish("orders", message.NewMessage(watermill.NewUUID(), nil)))
	}
	return b
}

// run runs the relay until stop, and returns once a call is held.
func (b *bench) run() (stop func()) {
	ctx, stop := context.WithCancel(b.Context())
	go func() { b.ended <- b.relay.Run(ctx) }()
	<-b.held
	return stop
}

// row reads one number.
func (b *bench) row(query string) (n int64) {
	b.Helper()
	require.NoError(b, b.relay.db.GetContext(b.Context(), &n, query))
	return n
}

func (b *bench) eventually(what string, done func() bool) {
	b.Helper()
	require.Eventually(b, done, 5*time.Minute, time.Millisecond, what)
}

const (
	tokenOfRelay = `SELECT COALESCE(MAX(token), 0) FROM millrace_outbox_relays`
	endOfLease   = `SELECT COALESCE(MAX(until), 0) FROM millrace_outbox_relays`
	ownedShards  = `SELECT COUNT(*) FROM millrace_outbox_shards WHERE owner <> 0`
	remaining    = `SELECT COUNT(*) FROM millrace_outbox`
)

// TestAPumpThatPanicsKeepsItsShards until the broker has what it was given: else the next relay sends
// the same, and what is behind it.
func TestAPumpThatPanicsKeepsItsShards(t *testing.T) {
	t.Parallel()
	b := newBench(t, RelayConfig{Drain: time.Hour})
	stop := b.run()
	b.eventually("the pump panics", func() bool { return b.relay.Panics() > 0 || !b.armed.Load() })
	token, until := b.row(tokenOfRelay), b.row(endOfLease)
	for range 2 {
		b.eventually("the lease is extended", func() bool { return b.row(endOfLease) > until })
		until = b.row(endOfLease)
	}
	assert.Equal(t, token, b.row(tokenOfRelay))
	assert.EqualValues(t, shardCount, b.row(ownedShards))
	assert.EqualValues(t, 1, b.given.Load())
	close(b.open)
	b.eventually("the outbox is empty", func() bool { return b.row(remaining) == 0 })
	stop()
	require.NoError(t, <-b.ended, "it went on")
	assert.EqualValues(t, 1, b.relay.Panics())
	assert.Zero(t, b.row(ownedShards))
}

// TestAPumpThatPanicsWaitsForDrainAtMost: a publisher that hangs does not keep the shards.
func TestAPumpThatPanicsWaitsForDrainAtMost(t *testing.T) {
	t.Parallel()
	b := newBench(t, RelayConfig{Drain: 2 * time.Second})
	stop := b.run()
	b.eventually("the next term sends it again", func() bool { return b.given.Load() > 1 })
	close(b.open)
	b.eventually("the outbox is empty", func() bool { return b.row(remaining) == 0 })
	stop()
	require.NoError(t, <-b.ended)
}

// TestRunTellsOfAPanicAtItsEnd: what was on its way was not written off.
func TestRunTellsOfAPanicAtItsEnd(t *testing.T) {
	b := newBench(t, RelayConfig{Drain: time.Hour})
	stop := b.run()
	b.eventually("the pump panics", func() bool { return !b.armed.Load() })
	stop()
	close(b.open)
	err := <-b.ended
	require.ErrorIs(t, err, errPanicked)
	require.EqualError(t, err, "outbox: relay: its work panicked: the pump")
	assert.Zero(t, b.row(ownedShards))
	assert.Zero(t, b.row(tokenOfRelay))
	assert.NotZero(t, b.row(remaining))
}

// TestADatabaseThatIsGoneAtAPanic keeps Run from nothing but giving up its shards.
func TestADatabaseThatIsGoneAtAPanic(t *testing.T) {
	b := newBench(t, RelayConfig{Drain: time.Hour})
	stop := b.run()
	b.eventually("the pump panics", func() bool { return !b.armed.Load() })
	require.NoError(t, b.relay.db.Close())
	stop()
	close(b.open)
	require.ErrorIs(t, <-b.ended, errPanicked)
}

// TestAPublisherThatPanicsWhileItIsDrained has its messages stay, and Run return.
func TestAPublisherThatPanicsWhileItIsDrained(t *testing.T) {
	r := newTestRelay(t, RelayConfig{Lanes: 1, Drain: time.Hour})
	held, open, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	var once sync.Once
	r.to = publishing(func(string, ...*message.Message) error {
		once.Do(func() { close(held) })
		<-open
		panic("a publisher")
	})
	out, err := NewPublisher(r.db.DB, Config{Standalone: true})
	require.NoError(t, err)
	for range 5 {
		require.NoError(t, out.Publish("orders", message.NewMessage(watermill.NewUUID(), nil)))
	}
	ctx, stop := context.WithCancel(t.Context())
	go func() { ended <- r.Run(ctx) }()
	<-held
	stop()
	close(open)
	require.NoError(t, <-ended)
	b := &bench{T: t, relay: r}
	assert.EqualValues(t, 5, b.row(remaining))
	assert.Zero(t, b.row(ownedShards))
	assert.Positive(t, r.Panics())
}

// counting counts what it logs about observers that hang.
type counting struct {
	watermill.NopLogger
	said *atomic.Int64
}

func (c counting) Error(text string, _ error, _ watermill.LogFields) {
	if strings.HasPrefix(text, "outbox: an observer does not return") {
		c.said.Add(1)
	}
}

// TestAnObserverThatDoesNotReturn misses events, and keeps nothing from being sent.
func TestAnObserverThatDoesNotReturn(t *testing.T) {
	hung, open, ended := make(chan struct{}, 100), make(chan struct{}), make(chan error, 1)
	var heard, said atomic.Int64
	r := newTestRelay(t, RelayConfig{Drain: time.Hour, Logger: counting{said: &said}, Observers: []Observer{
		On(func(context.Context, Event) { hung <- struct{}{}; <-open }, KindPublished),
		On(func(_ context.Context, e Event) { heard.Add(int64(e.Count)) }, KindPublished),
	}})
	r.patience = 100 * time.Millisecond
	r.to = publishing(func(string, ...*message.Message) error { return nil })
	out, err := NewPublisher(r.db.DB, Config{Standalone: true})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	go func() { ended <- r.Run(ctx) }()
	b := &bench{T: t, relay: r}
	for n := range int64(3) {
		require.NoError(t, out.Publish("orders", message.NewMessage(watermill.NewUUID(), nil)))
		b.eventually("it is sent and recorded", func() bool { return heard.Load() == n+1 && b.row(remaining) == 0 })
	}
	stop()
	require.NoError(t, <-ended)
	assert.Len(t, hung, 1)
	assert.EqualValues(t, 1, said.Load())
	o := r.observers[KindPublished][0]
	assert.True(t, o.hangs())
	close(open)
	b.eventually("it gets events again", func() bool { return !o.hangs() })
}

func TestWhatEndsAGoroutineIsAPanic(t *testing.T) {
	o := newOutside(exiting{})
	err := o.await("it", func() error { panic(errors.New("boom")) })
	require.ErrorIs(t, err, errPanicked)
	require.EqualError(t, err, "it panicked: boom")
	assert.EqualValues(t, 2, o.panics.Load(), "the logger's too")
}

// exiting is a logger that ends the goroutine that logs.
type exiting struct{ watermill.NopLogger }

func (exiting) Error(string, error, watermill.LogFields) { runtime.Goexit() }

func TestALoggerThatExitsKeepsNobodyWaiting(t *testing.T) {
	o, ended := newOutside(exiting{}), make(chan error, 1)
	for name, work := range map[string]func() error{
		"panics": func() error { panic("a publisher") },
		"exits":  func() error { runtime.Goexit(); return nil },
	} {
		go func() { ended <- o.await("it", work) }()
		select {
		case err := <-ended:
			require.Error(t, err, name)
		case <-time.After(time.Minute):
			require.Fail(t, "it waits for ever", name)
		}
	}
}
