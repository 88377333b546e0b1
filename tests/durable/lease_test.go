package durable_test

import (
	"context"
	"regexp"
	"strings"
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
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/servers"
	"github.com/millrace-go/millrace/tests/testdb"
)

// leaseBodies: what becomes of a message whose holder is gone or too slow.
var leaseBodies = []testdb.Body{
	{Name: "a server that hangs until Timeout ends a run", Why: "an outage is no attempt", Not: waitsForAnswers, Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		if b.db.Dialect == "sqlite" {
			t.Log("there is no server")
			return
		}
		wire, _ := servers.Before(b, b.db.DSN)
		store := rig.NewStore(b, b.db.Open(b, testdb.Via(wire.Addr())).DB, inbox.Config{
			WithoutPlugin: true, Observers: []inbox.Observer{inbox.On(func(context.Context, inbox.Event) { wire.Thaw() }, inbox.KindFailed)},
		})
		durable := quick(store)
		durable.Mode, durable.MaxAttempts, durable.Lease = pubsub.StoreFirst, 1, time.Minute
		var once sync.Once
		s := b.start(durable, func(msg *message.Message) ([]*message.Message, error) {
			once.Do(wire.Freeze)
			return nil, effect(msg)
		}, millrace.Inbox{Store: store, Timeout: 6 * time.Second}.Middleware) // a run must end within it
		msg := newMessage()
		assert.True(t, s.deliver(msg))
		rig.Eventually(b, "it is handled, or parked", func() bool { return b.rows() == b.open(admin.Parked) })
		assert.Equal(t, []int{1, 0}, []int{b.effects(msg), b.rows()})
	})},
	{Name: "an answer that the database does not hear", Why: "it is told again: nobody waits for the lease, and an outage is no attempt",
		Run: wired(func(_ *testing.T, b *bed, wire *servers.Wire, durable pubsub.Durable, events *rig.Events) {
			b.toldAgain(durable, events, wire.Cut, wire.Mend)
		})},
	{Name: "answers during a fail-over", Why: "they are told again until the standby is promoted", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		var refusal error
		t.Run("a standby", func(t *testing.T) {
			_, refusal = b.db.ReadOnly(t).ExecContext(t.Context(), `DELETE FROM effects`)
			require.Error(t, refusal)
		})
		pool, events := faults.Open(t, b.db), &rig.Events{}
		store := rig.NewStore(b, pool.DB, inbox.Config{WithoutPlugin: true, Logger: events})
		b.toldAgain(storeFirst(store), events, func() {
			pool.Set(faults.Plan{Before: func(_ context.Context, call string) error {
				if writes.MatchString(call) {
					return refusal
				}
				return nil
			}})
		}, func() { pool.Set(faults.Plan{}) })
	})},
	{Name: "an outage that is longer than a lease", Why: "what the handler has meanwhile is not taken from it, and charged with nothing",
		Run: wired(func(_ *testing.T, b *bed, wire *servers.Wire, durable pubsub.Durable, events *rig.Events) {
			b.outlastsLease(durable, events, wire.Cut, wire.Mend)
		})},
	{Name: "an outage while messages of an order key arrive", Why: "they wait at their source: given back, they would be overtaken",
		Run: wired(func(t *testing.T, b *bed, wire *servers.Wire, durable pubsub.Durable, events *rig.Events) {
			durable.OrderKey = func(*message.Message) (string, error) { return "a", nil }
			s, handled := b.noting(durable)
			first := newMessage()
			assert.True(t, s.deliver(first))
			rig.Eventually(b, "it is handled", func() bool { return b.rows() == 0 })
			wire.Cut()
			all := newMessages(5)
			for _, msg := range all {
				s.source.Send(b, msg)
			}
			rig.Eventually(b, "the database is missed", says(events, "a message could not be stored"))
			wire.Mend()
			for _, msg := range all {
				for c := msg; !rig.Answer(b, c); { // a broker delivers it again, behind the others
					c = msg.Copy()
					s.source.Send(b, c)
				}
			}
			rig.Eventually(b, "all are handled", func() bool { return b.rows() == 0 })
			assert.Equal(t, uuids(append([]*message.Message{first}, all...)), handled())
		})},
	{Name: "a key that nobody answers for, before others of an order key", Why: "it waits at its source, and they behind it", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		events := &rig.Events{}
		store := rig.NewStore(t, b.db.DB, inbox.Config{WithoutPlugin: true, Logger: events})
		durable, all := storeFirst(store), newMessages(3)
		var down atomic.Bool
		down.Store(true)
		durable.OrderKey = func(*message.Message) (string, error) { return "a", nil }
		durable.Key = inbox.ByFunc("asks", func(msg *message.Message) (string, error) {
			if msg.UUID == all[0].UUID && down.Load() {
				return "", context.DeadlineExceeded
			}
			return msg.UUID, nil
		})
		s, handled := b.noting(durable)
		for _, msg := range all {
			s.source.Send(b, msg)
		}
		rig.Eventually(b, "nobody answers", says(events, "a message could not be stored"))
		down.Store(false)
		for _, msg := range all {
			require.True(t, rig.Answer(b, msg))
		}
		rig.Eventually(b, "all are handled", func() bool { return b.rows() == 0 })
		assert.Equal(t, uuids(all), handled())
	})},
	{Name: "a row that a dead session holds", Why: "the leases of the others are renewed", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		if b.db.Dialect == "sqlite" {
			t.Log("there are no locks of rows")
			return
		}
		queue := b.storeIn(inbox.QueueConfig{Lease: time.Hour}, newMessages(3)...)
		taken := b.takes(queue, 3)
		b.db.Do(t, `UPDATE millrace_messages SET due_at = 1`)
		first := b.count(`SELECT MIN(id) FROM millrace_messages`)
		dead, err := b.db.Open(t).BeginTxx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { assert.NoError(t, dead.Rollback()) }()
		_, err = dead.ExecContext(t.Context(), dead.Rebind(`UPDATE millrace_messages SET received_at = 1 WHERE id = ?`), first)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
		defer cancel()
		require.NoError(t, queue.Extend(ctx, taken))
		assert.Equal(t, 2, b.count(`SELECT COUNT(*) FROM millrace_messages WHERE due_at > 1`))
	})},
	{Name: "many messages under leases of their own", Why: "they are renewed together, and those of which the database heard stay so", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		const slice = 500
		queue := b.storeIn(inbox.QueueConfig{}, newMessages(slice+1)...)
		taken := append(append(rig.Take(t, queue, 1), rig.Take(t, queue, 1)...), rig.Take(t, queue, slice)...)
		require.Len(t, taken, slice+1)
		b.db.Do(t, `UPDATE millrace_messages SET due_at = 1`)
		pool, calls := faults.Open(t, b.db), 0
		pool.Set(faults.Plan{Before: faults.At("UPDATE", func() error {
			if calls++; calls == 2 {
				return errFault
			}
			return nil
		})})
		elsewhere := rig.Queue(t, b.newStore(pool.DB), inbox.QueueConfig{Consumer: consumer})
		require.ErrorIs(t, elsewhere.Extend(t.Context(), taken), errFault)
		assert.Equal(t, slice, b.count(`SELECT COUNT(*) FROM millrace_messages WHERE due_at > 1`))
		require.NoError(t, queue.Finish(t.Context(), taken...))
		assert.Zero(t, b.rows())
	})},
	{Name: "a process that gives no answer", Why: "its messages are tried one by one, each counted before, and only the one that ends it is parked",
		Run: testdb.With(newBed, func(t *testing.T, b *bed) {
			all := newMessages(5)
			queue := b.storeIn(inbox.QueueConfig{Lease: time.Second, MaxAttempts: 2}, all...)
			poison := all[3].UUID
			lapse := func() { b.db.Do(t, `UPDATE millrace_messages SET due_at = 1`) }
			b.takes(queue, 5)
			lapse()                    // the process dies before it hands them out
			taken := b.takes(queue, 5) // which costs them nothing
			for range 2 {              // a service that closes before it delivers costs nothing either
				ours, err := queue.HandOut(t.Context(), taken...)
				require.NoError(t, err)
				require.Len(t, ours, 5)
				require.NoError(t, queue.PutBack(t.Context(), taken...))
				taken = b.takes(queue, 5)
			}
			ours, err := queue.HandOut(t.Context(), taken...)
			require.NoError(t, err)
			require.Len(t, ours, 5)
			lapse() // and now afterwards
			tries := 0
			for b.rows()-b.open(admin.Parked) > 0 {
				taken := rig.Take(t, queue, 10)
				require.LessOrEqual(t, len(taken), 1, "alone")
				for _, l := range taken {
					assert.True(t, l.Suspect())
					msg, err := l.Message(t.Context())
					require.NoError(t, err)
					if msg.UUID == poison {
						tries++
						lapse() // and another process dies
						continue
					}
					require.NoError(t, l.Finish(t.Context()))
				}
			}
			assert.Equal(t, 2, tries)
			parked := b.only(b.store, admin.Parked)
			assert.Equal(t, poison, parked.UUID)
			assert.Contains(t, parked.Reason, "it may end the process")
		})},
	{Name: "a service that closes while it hands messages out", Why: "those that no handler has go back at once, in one transaction",
		Run: testdb.With(newBed, func(t *testing.T, b *bed) {
			const n = 5
			b.storeIn(inbox.QueueConfig{}, newMessages(n)...)
			pool := faults.Open(t, b.db)
			sub, err := storeFirst(b.newStore(pool.DB)).Decorate(rig.NewFeed())
			require.NoError(t, err)
			_, err = sub.Subscribe(t.Context(), "orders") // and nobody receives
			require.NoError(t, err)
			rig.Eventually(b, "all are to be handed out", func() bool { return b.open(admin.InProgress) == n })
			var ends atomic.Int32
			pool.Set(faults.Plan{Before: func(_ context.Context, call string) error {
				if writes.MatchString(call) && strings.Contains(call, "lease_token = 0") {
					ends.Add(1)
				}
				return nil
			}})
			require.NoError(t, sub.Close())
			assert.Equal(t, []int{1, n}, []int{int(ends.Load()), b.open(admin.Received)})
		})},
	{Name: "a lease that is lost", Why: "the slow loser's transaction is rolled back: effects once", Run: func(t *testing.T, db *testdb.DB) {
		if db.Dialect == "sqlite" {
			t.Log("a handler's transaction stops every writer here: nobody can take the lease")
			return
		}
		b := newBed(t, db)
		msg := newMessage()
		taken := rig.Take(t, b.storeIn(inbox.QueueConfig{Lease: time.Second}, msg), 1)
		slow, err := taken[0].Message(t.Context())
		require.NoError(t, err)
		h := millrace.Inbox{Store: b.store, Consumer: consumer}.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			err := effect(msg)
			db.Do(t, `UPDATE millrace_messages SET lease_token = lease_token + 1`) //nolint:contextcheck // by another process
			return nil, err
		})
		require.ErrorIs(t, do(h, slow), inbox.ErrLost)
		assert.Zero(t, b.effects(msg))
		assert.Equal(t, 1, b.rows())
	}},
}

var writes = regexp.MustCompile(`^\s*(INSERT|UPDATE|DELETE)\b`)

// toldAgain checks that answers outlast a database that goes away while a handler runs, and comes back.
func (b *bed) toldAgain(durable pubsub.Durable, events *rig.Events, leave, comeBack func()) {
	b.Helper()
	durable.MaxAttempts, durable.Lease = 2, time.Hour
	var runs counter
	s := b.start(durable, silent(func(msg *message.Message) error {
		if runs.run(msg) > 1 {
			return nil
		}
		leave()
		if msg.Metadata.Get("fails") != "" {
			return errBoom
		}
		return nil
	}))
	for n, fails := range []string{"", "yes"} {
		msg := newMessage()
		msg.Metadata.Set("fails", fails)
		assert.True(b, s.deliver(msg))
		rig.Eventually(b, "the answer is not heard", func() bool { return events.Said("could not be recorded; retrying") > n })
		comeBack()
		rig.Eventually(b, "it is handled, or parked", func() bool { return b.rows() == b.open(admin.Parked) })
		assert.Equal(b, []int{n + 1, 0}, []int{runs.of(msg), b.rows()})
	}
}

// outlastsLease checks that a handler keeps its message while a database goes away for longer than a lease, and comes back.
func (b *bed) outlastsLease(durable pubsub.Durable, events *rig.Events, leave, comeBack func()) {
	b.Helper()
	durable.MaxAttempts, durable.Concurrency, durable.Lease = 1, 2, 10*time.Second
	var runs counter
	entered, goOn := make(chan struct{}, 2), make(chan struct{})
	s := b.start(durable, silent(func(msg *message.Message) error {
		runs.run(msg)
		entered <- struct{}{}
		<-goOn
		return nil
	}))
	leased := func() bool {
		return b.count(`SELECT COUNT(*) FROM millrace_messages WHERE due_at > ?`, time.Now().UnixMicro()) == 1
	}
	msg := newMessage()
	assert.True(b, s.deliver(msg))
	rig.Within(b, entered, "the handler has it")
	leave()
	rig.Eventually(b, "the lease has lapsed", func() bool { return !leased() })
	comeBack()
	rig.Eventually(b, "it is leased again", leased)
	close(goOn)
	rig.Eventually(b, "it is handled, or parked", func() bool { return b.rows() == b.open(admin.Parked) })
	assert.Equal(b, []int{1, 0}, []int{runs.of(msg), b.rows()})
	assert.Positive(b, events.Said("stored messages could not be fetched"))
	rig.Eventually(b, "the database is back", says(events, "stored messages are fetched again"))
}

// noting runs a handler, and returns the messages in the order in which it had them.
func (b *bed) noting(durable pubsub.Durable) (s *service, handled func() []string) {
	b.Helper()
	var mu sync.Mutex
	var all []string
	s = b.start(durable, silent(func(msg *message.Message) error {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, msg.UUID)
		return nil
	}))
	return s, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return all
	}
}

// says asks whether the service has logged a text.
func says(events *rig.Events, text string) func() bool {
	return func() bool { return events.Said(text) > 0 }
}

// wired is a body for a Durable at the end of a wire, whose log is in events.
func wired(
	body func(t *testing.T, b *bed, wire *servers.Wire, durable pubsub.Durable, events *rig.Events),
) func(*testing.T, *testdb.DB) {
	return testdb.With(newBed, func(t *testing.T, b *bed) {
		if b.db.Dialect == "sqlite" {
			t.Log("there is no server")
			return
		}
		wire, _ := servers.Before(b, b.db.DSN)
		events := &rig.Events{}
		store := rig.NewStore(b, b.db.Open(b, testdb.Via(wire.Addr())).DB, inbox.Config{WithoutPlugin: true, Logger: events})
		body(t, b, wire, storeFirst(store), events)
	})
}
