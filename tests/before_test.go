package tests_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func before(f func(msg *message.Message) error) func(*millrace.Inbox) {
	return func(i *millrace.Inbox) { i.Before = f }
}

// beforeBodies: what runs before the transaction of a message.
var beforeBodies = []testdb.Body{
	{Name: "Before runs before the transaction", Why: "a call must not hold a connection", Run: testdb.With(newBed, beforeTx)},
	{Name: "Before does not run for what is not handled", Why: "a duplicate, a collision and what is too old have nothing to prepare", Run: testdb.With(newBed, beforeNothing)},
	{Name: "Before fails", Why: "the message has failed, and what is recorded is that", Run: testdb.With(newBed, beforeFails)},
	{Name: "Before takes too long", Why: "it has a bound of its own", Run: testdb.With(newBed, beforeTooLong)},
	{Name: "Before and copies", Why: "copies in a process wait for it, and those in another for its step", Run: testdb.With(newBed, beforeCopies)},
	{Name: "Before and the version gate", Why: "it would run for what the gate holds or passes over", Run: testdb.With(newBed, beforeGate)},
	{Name: "Before of a refused replay that an operator retries", Why: "the handler never runs without it", Run: testdb.With(newBed, beforeRetried)},
	{Name: "Before when the router closes", Why: "Store.Close waits for it", Run: testdb.With(newBed, beforeClose)},
}

func beforeTx(t *testing.T, b *bed) {
	pool := b.db.Open(t)
	pool.SetMaxOpenConns(1) // what Before holds, nobody else has
	store := b.newStore(pool.DB, inbox.Config{})
	var p provider
	step := inbox.Step{Name: "mail", Do: func(ctx context.Context, id string) ([]byte, error) {
		_, err := pool.ExecContext(ctx, pool.Rebind(`INSERT INTO effects (uuid, consumer) VALUES (?, 'outside')`), id)
		require.NoError(t, err)
		return p.call(ctx, id)
	}}
	var order []string
	fails := errBoom
	h := b.inbox(func(msg *message.Message) ([]*message.Message, error) {
		result, err := step.Run(msg.Context())
		require.NoError(t, err)
		id, err := inbox.ID(msg.Context(), "mail")
		require.NoError(t, err)
		assert.Equal(t, p.ids[0], id, "the same in the handler")
		order = append(order, "handler "+string(result))
		must(t, func(*message.Message) ([]*message.Message, error) { return effect(msg) }, msg)
		return nil, fails
	}, on(store), before(func(msg *message.Message) error {
		_, err := inbox.Tx(msg.Context())
		require.ErrorIs(t, err, inbox.ErrNoTx)
		result, err := step.Run(msg.Context())
		order = append(order, "before "+string(result))
		return err
	}))
	msg := newMessage("x")
	given := again(msg)
	ctx := given.Context()
	rig.MustFail(t, h, given, errBoom)
	assert.Equal(t, ctx, given.Context(), "the message's context is its own again")
	fails = nil
	must(t, h, again(msg))
	must(t, h, again(msg))
	assert.Equal(t, []string{"before receipt", "handler receipt", "before receipt", "handler receipt"}, order)
	assert.Len(t, p.ids, 1)
	assert.Equal(t, 1, b.effectsOf(msg.UUID))
}

func beforeNothing(t *testing.T, b *bed) {
	ran := 0
	count := before(func(*message.Message) error { ran++; return nil })
	h := b.inbox(effect, count)
	msg := newMessage("x")
	must(t, h, again(msg))
	require.Equal(t, 1, ran)
	must(t, b.inbox(effect, count, on(b.process())), again(msg))
	collision := again(msg)
	collision.Payload = []byte("other")
	must(t, h, collision)
	assert.Equal(t, 1, b.events.Count("parked"))

	b.exec(`UPDATE millrace_consumers SET purge_line = ?`, time.Now().UnixMicro())
	old := newMessage("z")
	old.Metadata.Set("ce_time", time.Now().Add(-3*time.Hour).Format(time.RFC3339))
	must(t, h, old)
	assert.Equal(t, inbox.ReasonTooOld, b.events.Last("parked").Reason)
	must(t, b.inbox(effect, count, onReplay(inbox.ReplayRefuse)), replay(newMessage("y"), "r"))
	assert.Equal(t, inbox.ReasonReplayed, b.events.Last("parked").Reason)
	assert.Equal(t, 1, ran)
}

func beforeFails(t *testing.T, b *bed) {
	fails := errBoom
	handled := 0
	h := func(records bool) message.HandlerFunc {
		return b.inbox(func(msg *message.Message) ([]*message.Message, error) { handled++; return effect(msg) },
			func(i *millrace.Inbox) { i.RecordFailures = records },
			before(func(*message.Message) error { return fails }))
	}
	msg := newMessage("x")
	_, err := h(false)(again(msg))
	var failed *inbox.DeliveryError
	require.ErrorAs(t, err, &failed)
	require.ErrorIs(t, err, errBoom)
	assert.Equal(t, msg.UUID, failed.MessageID)
	b.nothingOpen()
	assert.Equal(t, 1, b.events.Count("failed"))
	assert.Equal(t, inbox.ReasonError, b.events.Last("failed").Reason)
	for n := range 2 {
		rig.MustFail(t, h(true), again(msg), errBoom)
		open := rig.Find(t, b.store, admin.Filter{})
		require.Len(t, open, 1)
		assert.Equal(t, []any{admin.FailedRetryable, n + 1, "boom"}, []any{open[0].Status, open[0].Attempts, open[0].LastError})
	}
	func() {
		defer func() { assert.Equal(t, "panicked", recover()) }()
		_, _ = b.inbox(effect, before(func(*message.Message) error { panic("panicked") }))(again(msg))
	}()
	fails = nil
	must(t, h(true), again(msg))
	assert.Equal(t, 1, handled)
	assert.Equal(t, 1, b.effects())
	b.nothingOpen()
}

func beforeTooLong(t *testing.T, b *bed) {
	h := func(timeout time.Duration, do func(msg *message.Message) error) message.HandlerFunc {
		return b.inbox(effect, before(do), func(i *millrace.Inbox) { i.BeforeTimeout = timeout })
	}
	rig.MustFail(t, h(10*time.Millisecond, func(msg *message.Message) error {
		<-msg.Context().Done()
		return msg.Context().Err()
	}), newMessage("x"), context.DeadlineExceeded, "BeforeTimeout, 10ms, ran out")
	assert.Equal(t, inbox.ReasonTimeout, b.events.Last("failed").Reason)
	_, err := h(time.Hour, func(msg *message.Message) error {
		deadline, known := msg.Context().Deadline()
		assert.True(t, known && time.Until(deadline) > 30*time.Minute)
		return nil
	})(newMessage("x"))
	require.NoError(t, err)
}

func beforeCopies(t *testing.T, b *bed) {
	var inside, calls atomic.Int32
	step := inbox.Step{Name: "mail", Wait: 30 * time.Second, Do: func(context.Context, string) ([]byte, error) {
		calls.Add(1)
		return nil, nil
	}}
	msg := newMessage("x")
	var all sync.WaitGroup
	var unhappy atomic.Value
	for process := range 2 {
		var within atomic.Int32
		h := b.inbox(effect, on(b.process()), func(i *millrace.Inbox) { i.TwinWait = 30 * time.Second },
			before(func(msg *message.Message) error {
				defer within.Add(-1)
				if n := within.Add(1); n > 1 {
					return fmt.Errorf("%d at once in process %d", n, process)
				}
				inside.Add(1)
				_, err := step.Run(msg.Context())
				return err
			}))
		for range 4 {
			all.Go(func() {
				if _, err := h(again(msg)); err != nil {
					unhappy.Store(err)
				}
			})
		}
	}
	all.Wait()
	assert.Nil(t, unhappy.Load())
	assert.EqualValues(t, 1, calls.Load())
	assert.LessOrEqual(t, inside.Load(), int32(2))
	assert.Equal(t, 1, b.effects())
}

func beforeGate(t *testing.T, b *bed) {
	h := b.inbox(millrace.VersionGate{Optional: true}.Middleware(effect), before(func(*message.Message) error { return nil }))
	rig.MustFail(t, h, newMessage("x"), "leave Before out")
	assert.Zero(t, b.effects())
}

func beforeRetried(t *testing.T, b *bed) {
	ran := 0
	s := b.newService(effect, millrace.Inbox{
		Store: b.store, Options: inbox.Options{OnReplay: inbox.ReplayRefuse, Before: func(*message.Message) error { ran++; return nil }},
	}.Middleware)
	assert.True(t, s.deliver(replay(newMessage("x"), "r")))
	assert.Zero(t, ran)
	open := rig.Find(t, b.store, admin.Filter{})
	require.Len(t, open, 1)
	require.NoError(t, admin.New(b.store).Retry(t.Context(), open[0].ID, admin.Operator{Name: "ada", Reason: "wanted"}, s.published))
	sent := s.published.Messages()
	require.Len(t, sent, 1)
	assert.True(t, s.deliver(again(sent[0])))
	assert.Equal(t, 1, ran)
	assert.Equal(t, 1, b.effects())
}

func beforeClose(t *testing.T, b *bed) {
	begun, release := make(chan struct{}), make(chan struct{})
	var p provider
	h := b.inbox(effect, before(func(msg *message.Message) error {
		close(begun)
		<-release
		_, err := inbox.Once(msg.Context(), "mail", p.call)
		return err
	}))
	msg := newMessage("x")
	ctx, cancel := context.WithCancel(t.Context())
	msg.SetContext(ctx)
	ended := rig.Handle(h, msg)
	<-begun
	closing, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer stop()
	require.Error(t, b.store.Close(closing), "a handler is at work")
	cancel()
	close(release)
	err := <-ended
	require.Error(t, err)
	assert.True(t, errors.Is(err, context.Canceled))
	assert.Empty(t, p.ids)
	require.NoError(t, b.store.Close(t.Context()))
}
