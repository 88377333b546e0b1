package tests_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

var errBoom = errors.New("boom")

// deliveryBodies: what one message does that is delivered.
var deliveryBodies = []testdb.Body{
	{Name: "error then success", Why: "a failed run leaves nothing, and is not taken for a first delivery", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		h, msg := b.inbox(failing(1)), newMessage("x")
		rig.MustFail(t, h, again(msg), errBoom, msg.UUID, "billing")
		assert.Equal(t, 0, b.effects())
		assert.Equal(t, 0, b.count(`SELECT COUNT(*) FROM millrace_claims`))
		must(t, h, again(msg))
		assert.Equal(t, 1, b.effects())
	})},
	{Name: "panic then success", Why: "a panic leaves nothing behind and goes on its way", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		h, msg := b.inbox(atFirst(crash)), newMessage("x")
		assert.PanicsWithValue(t, "boom", func() { _, _ = h(again(msg)) })
		assert.Equal(t, 0, b.effects())
		must(t, h, again(msg))
		assert.Equal(t, 1, b.effects())
	})},
	{Name: "the router closes in the middle of a handler", Why: "T3: the commit must outlive the message's context", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		running, cancelled := make(chan struct{}), make(chan struct{})
		s := b.newService(func(msg *message.Message) ([]*message.Message, error) {
			close(running)
			<-msg.Context().Done() // the handler does see the cancellation
			close(cancelled)
			return nil, apply(context.WithoutCancel(msg.Context()), msg.UUID)
		}, b.patient().Middleware)
		msg := newMessage("x")
		s.feed.Send(t, msg)
		<-running
		require.NoError(t, s.router.Close())
		<-cancelled
		assert.True(t, rig.Answer(s, msg))
		assert.Equal(t, 1, b.effects())
		require.NoError(t, b.store.Close(t.Context()))
	})},
	{Name: "a handler slower than Timeout", Why: "what was rolled back underneath is never reported as done", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		h := b.inbox(func(msg *message.Message) ([]*message.Message, error) {
			_, _ = effect(msg)
			<-msg.Context().Done()
			return nil, nil
		}, func(i *millrace.Inbox) { i.Timeout = 300 * time.Millisecond })
		msg := newMessage("x")
		rig.MustFail(t, h, again(msg), "Timeout")
		assert.Equal(t, 0, b.effects())
		must(t, b.inbox(effect), again(msg))
		assert.Equal(t, 1, b.effects())
	})},
	{Name: "MaxInFlight", Why: "it bounds transactions, and copies that wait for a turn take none of them", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		running, goOn := make(chan struct{}), make(chan struct{})
		var now, most atomic.Int32
		blocked := newMessage("blocked")
		h := b.inbox(func(msg *message.Message) ([]*message.Message, error) {
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
			if msg.UUID == blocked.UUID {
				close(running)
				<-goOn
			}
			return effect(msg)
		}, func(i *millrace.Inbox) { i.MaxInFlight, i.Timeout = 2, 2*rig.Patience })
		var wg sync.WaitGroup
		wg.Go(func() { must(t, h, again(blocked)) })
		<-running
		for range 5 {
			wg.Go(func() { must(t, h, again(blocked)) })
		}
		if b.db.Dialect != "sqlite" { // where one transaction at a time is open anyway
			assert.Equal(t, 0, failures(10, func() error { _, err := h(newMessage("x")); return err }))
		}
		close(goOn)
		wg.Wait()
		assert.LessOrEqual(t, most.Load(), int32(2))
		assert.Equal(t, 1, b.effectsOf(blocked.UUID))
	})},
	{Name: "a full pool", Why: "a flood of messages must leave room: slots before connections", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		h := b.inbox(effect, on(b.process(testdb.Pool(1))))
		assert.Equal(t, 0, failures(50, func() error { _, err := h(newMessage("x")); return err }))
		assert.Equal(t, 50, b.effects())
	})},
	{Name: "our calls inside a handler", Why: "a call with a live transaction uses it, and never waits for a second connection", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		store := b.process(testdb.Pool(1))
		msg := newMessage("x")
		h := b.inbox(func(m *message.Message) ([]*message.Message, error) {
			story, err := admin.New(store).Story(m.Context(), m.UUID)
			if err == nil && len(story.Claims) != 1 {
				err = errors.New("the story does not show the claim of its own transaction")
			}
			return nil, err
		}, on(store), func(i *millrace.Inbox) { i.Timeout = rig.Patience })
		must(t, h, msg)
	})},
	{Name: "functions of the user that panic", Why: "no turn, slot or connection is lost to them", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		store := b.process(testdb.Pool(1))
		msg := newMessage("x")
		b.forgotten(msg)
		crash := true
		maybe := func() {
			if crash {
				panic("boom")
			}
		}
		for _, change := range []func(*millrace.Inbox){
			func(i *millrace.Inbox) {
				i.MessageTime = func(*message.Message) (time.Time, bool) { maybe(); return time.Now(), true }
			},
			func(i *millrace.Inbox) {
				i.OnBegin = func(context.Context, *sqlx.Tx, *message.Message) error { maybe(); return nil }
			},
		} {
			h, m := b.inbox(effect, on(store), change), newMessage("x")
			crash = true
			for range 3 {
				assert.PanicsWithValue(t, "boom", func() { _, _ = h(again(m)) })
			}
			crash = false
			must(t, h, again(m))
			assert.Equal(t, 1, b.effectsOf(m.UUID))
		}
		h, m := b.inbox(effect, on(store), func(i *millrace.Inbox) {
			i.Fingerprint = func(*message.Message) ([]byte, error) { maybe(); return nil, nil }
		}), newMessage("x")
		for _, crash = range []bool{true, false} { // it is kept, which a copy that can be compared does not see
			must(t, h, again(m))
		}
		assert.Equal(t, 1, b.effectsOf(m.UUID))
		ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
		defer cancel()
		require.NoError(t, store.Close(ctx), "a delivery is still counted as in flight")
	})},
	{Name: "a panic while the database is probed", Why: "the next delivery probes: an outage ends", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		pool := faults.Open(t, b.db)
		msg := newMessage("x")
		b.forgotten(msg)
		crash := false
		h := b.inbox(effect, on(b.newStore(pool.DB, inbox.Config{})), func(i *millrace.Inbox) {
			i.MessageTime = func(*message.Message) (time.Time, bool) {
				if crash {
					panic("boom")
				}
				return time.Time{}, false
			}
		})
		must(t, h, newMessage("warm up"))
		pool.Set(faults.Plan{Before: faults.Lose("INSERT INTO millrace_claims")})
		rig.MustFail(t, h, newMessage("y"), inbox.ErrUnavailable)
		pool.Set(faults.Plan{})
		crash = true
		assert.PanicsWithValue(t, "boom", func() { _, _ = h(newMessage("y")) })
		crash = false
		must(t, h, newMessage("y"))
	})},
	{Name: "the first messages of a handler at once", Why: "MaxInFlight holds from the first message on", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		var now, most atomic.Int32
		h := b.inbox(func(msg *message.Message) ([]*message.Message, error) {
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
			return effect(msg)
		}, func(i *millrace.Inbox) { i.MaxInFlight = 1 })
		assert.Equal(t, 0, failures(20, func() error { _, err := h(newMessage("x")); return err }))
		assert.Equal(t, int32(1), most.Load())
	})},
	{Name: "epoch raised", Why: "raising Epoch handles everything again on purpose", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage("x")
		for epoch := range 3 {
			h := b.inbox(effect, func(i *millrace.Inbox) { i.Epoch = epoch })
			must(t, h, again(msg))
			must(t, h, again(msg))
		}
		assert.Equal(t, 3, b.effects())
	})},
	{Name: "a result kept with the claim", Why: "duplicates and operators can see SetResult", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage("x")
		must(t, b.inbox(func(m *message.Message) ([]*message.Message, error) {
			if err := inbox.SetResult(m.Context(), map[string]int{"invoice": 7}); err != nil {
				return nil, err
			}
			return effect(m)
		}), again(msg))
		result, err := b.store.Result(t.Context(), "billing", msg.UUID)
		require.NoError(t, err)
		assert.JSONEq(t, `{"invoice":7}`, string(result))
		_, err = b.store.Result(t.Context(), "shipping", msg.UUID)
		require.ErrorIs(t, err, inbox.ErrNotFound)
	})},
}

// failures runs work n times at once and counts the errors, of which it prints the first.
func failures(n int, work func() error) int {
	var mu sync.Mutex
	var wg sync.WaitGroup
	failed := 0
	for range n {
		wg.Go(func() {
			if err := work(); err != nil {
				mu.Lock()
				if failed++; failed == 1 {
					fmt.Fprintln(os.Stderr, "the first failure:", err)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return failed
}
