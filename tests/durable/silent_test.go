package durable_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/internal/writers"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/servers"
	"github.com/millrace-go/millrace/tests/testdb"
)

// silentBodies: what becomes of messages whose process hears nothing from the database.
var silentBodies = []testdb.Body{
	{Name: "an answer to a database that is silent", Why: "it is told again, as to one that is gone", Not: waitsForAnswers,
		Run: wired(func(_ *testing.T, b *bed, wire *servers.Wire, durable pubsub.Durable, events *rig.Events) {
			b.toldAgain(durable, events, wire.Freeze, wire.Thaw)
		})},
	{Name: "a database that is silent for longer than a lease", Why: "nothing that hung takes what the handler has", Not: waitsForAnswers,
		Run: wired(func(_ *testing.T, b *bed, wire *servers.Wire, durable pubsub.Durable, events *rig.Events) {
			b.outlastsLease(durable, events, wire.Freeze, wire.Thaw)
		})},
	{Name: "an answer while another writer has the turn", Why: "it is told again: the turn ends", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		if b.db.Dialect != "sqlite" {
			t.Log("there are several writers")
			return
		}
		events := &rig.Events{}
		store := rig.NewStore(t, b.db.DB, inbox.Config{WithoutPlugin: true, Logger: events})
		turn, leave := writers.Of(b.db.DB.DB), func() {}
		b.toldAgain(storeFirst(store), events, func() {
			var err error
			leave, err = turn.Enter(context.WithoutCancel(t.Context()))
			require.NoError(t, err)
		}, func() { leave() })
	})},
	{Name: "what a queue asks of the database", Why: "each statement ends: one connection that is dead stops no worker", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		all := newMessages(4)
		b.takes(b.storeIn(inbox.QueueConfig{Lease: time.Second, MaxAttempts: 1}, all[0]), 1)
		b.db.Do(t, `UPDATE millrace_messages SET status = 2, attempts = 1, due_at = 1`) // it ended a process, and is to be parked
		b.storeIn(inbox.QueueConfig{}, all[1:]...)
		pool, bounds := faults.Open(t, b.db), &bounds{}
		queue := rig.Queue(t, b.newStore(pool.DB), inbox.QueueConfig{Consumer: consumer, Epoch: 1, MaxAttempts: 1})
		require.NoError(t, queue.Put(t.Context(), "orders", newMessage()))
		pool.Set(faults.Plan{Before: bounds.look})
		var taken []*inbox.Leased
		for len(taken) < len(all) { // without the one that is parked
			taken = append(taken, rig.Take(t, queue, 10)...)
		}
		require.Equal(t, 1, b.open(admin.Parked))
		ours, err := queue.HandOut(t.Context(), taken...)
		require.NoError(t, err)
		require.Len(t, ours, len(taken))
		require.NoError(t, queue.Extend(t.Context(), taken))
		for _, l := range taken {
			require.NoError(t, l.Fail(t.Context()))
		}
		assert.Empty(t, bounds.missing())
	})},
	{Name: "an announcement that gets no answer", Why: "leases are renewed, and failures answered, beside it", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		if b.db.Dialect == "sqlite" {
			t.Log("it has the only turn to write")
			return
		}
		taken := b.takes(b.storeIn(inbox.QueueConfig{}, newMessages(2)...), 2)
		b.db.Do(t, `UPDATE millrace_messages SET due_at = 1`)
		pool, hangs, goOn := faults.Open(t, b.db), make(chan struct{}), make(chan struct{})
		var once sync.Once
		pool.Set(faults.Plan{Before: faults.At("SET served_until", func() error {
			once.Do(func() { close(hangs) })
			<-goOn // as lib/pq does, whatever the context says
			return nil
		})})
		queue := rig.Queue(t, b.newStore(pool.DB), inbox.QueueConfig{Consumer: consumer})
		var announcing sync.WaitGroup
		announcing.Go(func() { rig.Take(b, queue, 1) })
		defer announcing.Wait()
		defer close(goOn)
		rig.Within(b, hangs, "it is announced")
		renewed, answered := make(chan error, 1), make(chan error, 1)
		go func() { renewed <- queue.Extend(t.Context(), taken) }()
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, fail := queue.Straight("orders", newMessage())
			_, err := fail(ctx)
			answered <- err
		}()
		require.NoError(t, rig.Within(b, renewed, "the leases are renewed"))
		assert.Equal(t, 2, b.count(`SELECT COUNT(*) FROM millrace_messages WHERE due_at > 1`))
		require.ErrorIs(t, rig.Within(b, answered, "the failure is answered"), context.DeadlineExceeded)
	})},
	{Name: "a service that closes before a handler ends", Why: "Store.Close waits until the answer is recorded", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		pool := faults.Open(t, b.db)
		store := b.newStore(pool.DB)
		entered, goOn := make(chan struct{}), make(chan struct{})
		s := b.start(storeFirst(store), silent(func(msg *message.Message) error {
			close(entered)
			<-msg.Context().Done()
			<-goOn
			return errBoom
		}))
		assert.True(t, s.deliver(newMessage()))
		rig.Within(b, entered, "the handler has it")
		closed := make(chan error)
		go func() { closed <- s.router.Close() }()
		<-time.After(2 * time.Second) // the subscription waits for 500 ms only
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		require.ErrorContains(t, store.Close(ctx), "1 stored messages have no recorded answer")
		pool.Set(faults.Plan{Before: func(_ context.Context, call string) error {
			if writes.MatchString(call) && strings.Contains(call, "millrace_messages") {
				<-time.After(300 * time.Millisecond)
			}
			return nil
		}})
		close(goOn)
		require.NoError(t, rig.Within(b, closed, "the router is closed"))
		require.NoError(t, store.Close(t.Context()))
		require.NoError(t, pool.Close())
		assert.Equal(t, 1, b.open(admin.FailedRetryable))
	})},
}

// bounds are the statements whose context has no deadline.
type bounds struct {
	mu    sync.Mutex
	calls []string
}

func (b *bounds) look(ctx context.Context, call string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, bounded := ctx.Deadline(); !bounded && call != faults.Begin && call != faults.Commit { // on SQLite these end in another way
		b.calls = append(b.calls, call)
	}
	return nil
}

func (b *bounds) missing() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.calls
}

var waitsForAnswers = map[string]string{
	"postgres": "lib/pq waits for the answer of a server that hangs, whatever its context says",
}
