package batch_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestConformance runs every behaviour on every database.
func TestConformance(t *testing.T) {
	t.Parallel()
	testdb.Conformance(t, bodies)
}

// sizes records the sizes of the batches that a handler gets.
type sizes struct {
	mu  sync.Mutex
	all []int
}

func (s *sizes) of(h handler) handler {
	return func(ctx context.Context, msgs []*message.Message) error {
		s.mu.Lock()
		s.all = append(s.all, len(msgs))
		s.mu.Unlock()
		return h(ctx, msgs)
	}
}

func (s *sizes) seen() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]int{}, s.all...)
}

// poisoned fails as long as bad is among the messages.
func poisoned(bad *message.Message, fail func(msg *message.Message) error) handler {
	uuid := bad.UUID
	return func(ctx context.Context, msgs []*message.Message) error {
		if err := apply(ctx, msgs); err != nil {
			return err
		}
		for _, m := range msgs {
			if m.UUID == uuid {
				return fail(m)
			}
		}
		return nil
	}
}

func without(msgs []*message.Message, i int) []*message.Message {
	return append(append([]*message.Message{}, msgs[:i]...), msgs[i+1:]...)
}

var bodies = []testdb.Body{
	{Name: "a batch", Why: "one transaction handles all, each is answered and counted by itself", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		const n = 100
		var seen sizes
		msgs := newMessages(n)
		b.must(b.batch(n, seen.of(func(ctx context.Context, msgs []*message.Message) error {
			tx, err := inbox.Tx(ctx)
			require.NoError(t, err)
			for _, m := range msgs {
				own, err := inbox.Tx(m.Context())
				require.NoError(t, err)
				assert.Same(t, tx, own)
				id, err := inbox.ID(m.Context(), "x")
				require.NoError(t, err)
				assert.NotEmpty(t, id)
				require.NoError(t, inbox.SetResult(m.Context(), m.UUID))
				_, limited := m.Context().Deadline()
				assert.True(t, limited)
			}
			_, err = inbox.ID(ctx, "x")
			require.ErrorIs(t, err, inbox.ErrNoMessage, "it belongs to no single message")
			_, limited := ctx.Deadline()
			assert.True(t, limited)
			return apply(msgs[0].Context(), msgs)
		})), msgs)
		assert.Equal(t, []int{n}, seen.seen())
		b.once(msgs)
		assert.Equal(t, map[string]int{"received": n, "completed": n}, b.events.Counts())
		result, err := b.store.Result(t.Context(), "billing", msgs[7].UUID)
		require.NoError(t, err)
		assert.Contains(t, string(result), msgs[7].UUID)
		b.must(b.batch(n, apply), copies(msgs))
		b.once(msgs)
		assert.Equal(t, n, b.events.Count("duplicate"))
		b.idle(b.db.DB)
	})},
	{Name: "messages that another process has handled", Why: "they are taken out of the batch and are duplicates", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		const n = 20
		msgs := newMessages(n)
		b.must(b.batch(5, apply, on(b.twin())), copies(msgs[:5]))
		var seen sizes
		b.must(b.batch(n, seen.of(apply)), msgs)
		assert.Equal(t, []int{n - 5}, seen.seen())
		b.once(msgs)
		assert.Equal(t, 5, b.events.Count("duplicate"))
	})},
	{Name: "all messages of a batch are copies", Why: "the handler does not run", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msgs := newMessages(5)
		b.must(b.batch(5, apply, on(b.twin())), copies(msgs))
		b.must(b.batch(5, apply), msgs)
		b.once(msgs)
		b.idle(b.db.DB)
	})},
	{Name: "a collision in a batch", Why: "it is parked, and the others are handled", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msgs := newMessages(5)
		b.must(b.batch(5, apply, on(b.twin())), copies(msgs))
		others := append(newMessages(4), message.NewMessage(msgs[0].UUID, []byte("other")))
		b.must(b.batch(5, apply), others)
		b.once(append(msgs, others[:4]...))
		assert.Equal(t, 1, b.events.Count("parked"))
	})},
	{Name: "copies in one batch", Why: "the first joins, and the other waits for it", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		const n = 10
		msgs := newMessages(n)
		b.must(b.batch(n, apply), append(msgs, copies(msgs)...))
		b.once(msgs)
		assert.Equal(t, n, b.events.Count("duplicate"))
	})},
	{Name: "a message that fails", Why: "halves are tried until it is alone, and is treated as by Inbox", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		const n, bad = 100, 42
		msgs := newMessages(n)
		var seen sizes
		h := b.batch(n, seen.of(poisoned(msgs[bad], func(*message.Message) error { return errBoom })),
			func(b *millrace.Batch) { b.Inbox.RecordFailures = true })
		for i, err := range b.errs(start(h, msgs)) {
			if i == bad {
				require.ErrorIs(t, err, errBoom)
				var named *inbox.DeliveryError
				require.ErrorAs(t, err, &named)
				assert.Equal(t, msgs[bad].UUID, named.MessageID)
			} else {
				require.NoError(t, err, i)
			}
		}
		assert.LessOrEqual(t, len(seen.seen()), 2*8)
		assert.Equal(t, n-1, b.effects())
		assert.Equal(t, n-1, b.events.Count("completed"))
		assert.Equal(t, 1, b.events.Count("failed"))
		assert.Equal(t, n, b.events.Count("received"))
		assert.Equal(t, 1, b.db.Count(t, `SELECT attempts FROM millrace_messages`))
		b.must(b.batch(1, apply, func(b *millrace.Batch) { b.Inbox.RecordFailures = true }), copies(msgs[bad:bad+1]))
		b.once(msgs)
		assert.Zero(t, b.db.Count(t, `SELECT COUNT(*) FROM millrace_messages`))
	})},
	{Name: "a message that panics", Why: "a panic is an error, and the message that panics alone does so in its own goroutine", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		const n, bad = 9, 3
		msgs := newMessages(n)
		h := b.batch(n, poisoned(msgs[bad], func(*message.Message) error { panic("no") }))
		var panics atomic.Int32
		answers := start(func(msg *message.Message) (produced []*message.Message, err error) {
			defer func() {
				if recover() != nil {
					assert.Equal(t, msgs[bad].UUID, msg.UUID)
					panics.Add(1)
				}
			}()
			return h(msg)
		}, msgs)
		for _, err := range b.errs(answers) {
			require.NoError(t, err)
		}
		assert.EqualValues(t, 1, panics.Load())
		b.once(without(msgs, bad))
		b.idle(b.db.DB)
	})},
	{Name: "a handler that ends its goroutine", Why: "nobody waits for ever, and each message is nacked by itself", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		const n = 5
		msgs := newMessages(n)
		h := b.batch(n, func(ctx context.Context, msgs []*message.Message) error {
			_ = apply(ctx, msgs)
			runtime.Goexit()
			return nil
		})
		for _, m := range msgs {
			go func() { _, _ = h(m) }()
		}
		for _, m := range msgs {
			assert.False(t, rig.Answer(t, m))
		}
		b.idle(b.db.DB)
		b.must(b.batch(n, apply), copies(msgs))
		b.once(msgs)
	})},
	{Name: "named failures", Why: "the others are done in the next transaction", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		const n = 100
		msgs := newMessages(n)
		var seen sizes
		bad := map[string]bool{msgs[3].UUID: true, msgs[77].UUID: true}
		h := b.batch(n, seen.of(func(ctx context.Context, batch []*message.Message) error {
			var failed []error
			for _, m := range batch {
				if bad[m.UUID] {
					failed = append(failed, millrace.Failed(m, errBoom))
				}
			}
			return errors.Join(append(failed, apply(ctx, batch))...)
		}))
		for i, err := range b.errs(start(h, msgs)) {
			if i == 3 || i == 77 {
				require.ErrorIs(t, err, errBoom)
			} else {
				require.NoError(t, err)
			}
		}
		assert.ElementsMatch(t, []int{n, n - 2, 1, 1}, seen.seen())
		b.once(without(without(msgs, 77), 3))
	})},
	{Name: "a copy in another process, at the same moment", Why: "it waits for the batch, and is a duplicate", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		const n = 30
		msgs := newMessages(n)
		var stores []*inbox.Store
		for range 3 {
			stores = append(stores, b.twin())
		}
		var answers []<-chan error
		for i, store := range stores {
			h := b.batch(10, apply, on(store))
			for j := range n { // in another order in each process
				answers = append(answers, rig.Handle(h, msgs[(j*7+i*11)%n].Copy()))
			}
		}
		for _, err := range b.errs(answers) {
			require.NoError(t, err)
		}
		b.once(msgs)
	})},
	{Name: "crossing batches", Why: "keys are claimed in one order, so that batches do not deadlock", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		const n, rounds = 100, 10
		var all []*message.Message
		for range rounds {
			first, second := b.batch(n, apply, on(b.twin())), b.batch(n, apply, on(b.twin()))
			msgs := newMessages(n)
			all = append(all, msgs...)
			answers := append(start(first, copies(msgs)), start(second, copies(msgs))...)
			for _, err := range b.errs(answers) {
				require.NoError(t, err)
			}
		}
		b.once(all)
		for _, e := range b.events.All("contention") { // on a busy machine a lock may be waited for in vain
			assert.NotContains(t, strings.ToLower(e.Err.Error()), "deadlock")
		}
	})},
	{Name: "a handler that changes its messages", Why: "the next try gets them as they came", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		const n = 6
		msgs := newMessages(n)
		var tries atomic.Int32
		h := b.batch(n, func(ctx context.Context, batch []*message.Message) error {
			for _, m := range batch {
				assert.Equal(t, "x", string(m.Payload))
				assert.Empty(t, m.Metadata)
				m.Payload[0] = 'y'
				m.Metadata.Set("changed", "yes")
			}
			err := apply(ctx, batch)
			for _, m := range batch {
				m.UUID = "changed"
			}
			if tries.Add(1) == 1 {
				return errBoom
			}
			return err
		})
		copied := copies(msgs)
		b.must(h, copied)
		b.once(msgs)
		for i, m := range copied {
			assert.Equal(t, msgs[i].UUID, m.UUID)
			assert.Equal(t, "x", string(m.Payload))
			assert.Empty(t, m.Metadata)
			assert.Nil(t, m.Context().Value(struct{}{}))
		}
	})},
	{Name: "a copy in another process that fails", Why: "the batch then handles the message", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msgs := newMessages(5)
		claimed, goOn := make(chan struct{}), make(chan struct{})
		first := start(b.batch(1, func(ctx context.Context, msgs []*message.Message) error {
			_ = apply(ctx, msgs)
			close(claimed)
			<-goOn
			return errBoom
		}, on(b.twin())), copies(msgs[:1]))
		<-claimed
		second := start(b.batch(5, apply), msgs)
		time.AfterFunc(50*time.Millisecond, func() { close(goOn) })
		require.ErrorIs(t, b.errs(first)[0], errBoom)
		for _, err := range b.errs(second) {
			require.NoError(t, err)
		}
		b.once(msgs)
	})},
	{Name: "a copy that another process holds for long", Why: "only that message waits, and is nacked", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		if b.db.Dialect == "sqlite" {
			return // one transaction there keeps all others waiting
		}
		msgs := newMessages(5)
		claimed, goOn := make(chan struct{}), make(chan struct{})
		first := start(b.batch(1, func(ctx context.Context, msgs []*message.Message) error {
			close(claimed)
			<-goOn
			return apply(ctx, msgs)
		}, on(b.twin())), copies(msgs[:1]))
		<-claimed
		second := start(b.batch(5, apply, func(b *millrace.Batch) { b.Inbox.TwinWait = 5 * time.Second }), msgs)
		for i, err := range b.errs(second) {
			if i == 0 {
				require.ErrorIs(t, err, inbox.ErrInProgress)
			} else {
				require.NoError(t, err)
			}
		}
		close(goOn)
		require.NoError(t, b.errs(first)[0])
		b.once(msgs)
	})},
	{Name: "a message whose context ends while it waits", Why: "it leaves the batch and is nacked, and the others go on", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msgs := newMessages(3)
		h := b.batch(2, apply)
		ctx, cancel := context.WithCancel(t.Context())
		msgs[0].SetContext(ctx)
		left := rig.Handle(h, msgs[0]) // leads
		cancel()
		require.ErrorIs(t, rig.Within(t, left, "it waits"), context.Canceled)
		b.must(h, msgs[1:])
		b.once(msgs[1:])
		b.must(b.batch(1, apply), copies(msgs[:1]))
		b.once(msgs)
	})},
	{Name: "contexts that end while the batch runs", Why: "one does not harm the others, and all together end the handler's", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msgs := newMessages(4)
		var cancels []context.CancelFunc
		for _, m := range msgs {
			ctx, cancel := context.WithCancel(t.Context())
			m.SetContext(ctx)
			cancels = append(cancels, cancel)
		}
		b.must(b.batch(4, func(ctx context.Context, msgs []*message.Message) error {
			cancels[1]()
			return errors.Join(ctx.Err(), apply(ctx, msgs))
		}), msgs)
		b.once(msgs)

		more := newMessages(4)
		ctx, cancel := context.WithCancel(t.Context())
		for _, m := range more {
			m.SetContext(ctx)
		}
		h := b.batch(4, func(ctx context.Context, msgs []*message.Message) error {
			err := apply(ctx, msgs)
			cancel()
			<-ctx.Done()
			return errors.Join(err, ctx.Err())
		})
		for _, err := range b.errs(start(h, more)) {
			require.ErrorIs(t, err, context.Canceled)
		}
		b.once(msgs)
	})},
	{Name: "a router that closes", Why: "it does not undo a finished batch", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msgs := newMessages(4)
		ctx, cancel := context.WithCancel(t.Context())
		for _, m := range msgs {
			m.SetContext(ctx)
		}
		b.must(b.batch(4, func(ctx context.Context, msgs []*message.Message) error {
			defer cancel()
			return apply(ctx, msgs)
		}), msgs)
		b.once(msgs)
		require.NoError(t, b.store.Close(t.Context()))
	})},
	{Name: "a handler that commits", Why: "its messages count as completed, loudly", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msgs := newMessages(4)
		answers := start(b.batch(4, func(ctx context.Context, msgs []*message.Message) error {
			err := apply(ctx, msgs)
			tx, _ := inbox.Tx(ctx)
			_ = tx.Commit()
			return err
		}), msgs)
		for _, err := range b.errs(answers) {
			if b.db.Dialect == "sqlite" { // which refuses the commit
				require.ErrorIs(t, err, inbox.ErrTxEndedByHandler)
			} else {
				require.NoError(t, err)
			}
		}
		assert.NotZero(t, b.events.Count("ended tx"))
		if b.db.Dialect == "sqlite" {
			assert.Zero(t, b.effects())
			return
		}
		b.once(msgs)
	})},
	{Name: "a handler that commits and fails", Why: "its claims are taken back, so that nothing is lost", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msgs := newMessages(4)
		answers := start(b.batch(4, func(ctx context.Context, msgs []*message.Message) error {
			err := apply(ctx, msgs)
			tx, _ := inbox.Tx(ctx)
			_ = tx.Commit()
			return errors.Join(err, errBoom)
		}), msgs)
		for _, err := range b.errs(answers) {
			require.ErrorIs(t, err, errBoom)
			require.ErrorIs(t, err, inbox.ErrTxEndedByHandler)
		}
		assert.Zero(t, b.db.Count(t, `SELECT COUNT(*) FROM millrace_claims WHERE result <> 0`))
		b.db.Do(t, `DELETE FROM effects`)
		b.must(b.batch(1, apply), copies(msgs))
		b.once(msgs)
		b.idle(b.db.DB)
	})},
	{Name: "a handler that rolls back", Why: "nothing is committed", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msgs := newMessages(4)
		answers := start(b.batch(4, func(ctx context.Context, msgs []*message.Message) error {
			err := apply(ctx, msgs)
			tx, _ := inbox.Tx(ctx)
			return errors.Join(err, tx.Rollback())
		}), msgs)
		for _, err := range b.errs(answers) {
			require.ErrorIs(t, err, inbox.ErrTxEndedByHandler)
		}
		assert.Zero(t, b.effects())
		assert.Zero(t, b.db.Count(t, `SELECT COUNT(*) FROM millrace_claims`))
	})},
	{Name: "the answer to the COMMIT is lost", Why: "each message is answered by its claim", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		for _, committed := range []bool{true, false} {
			pool := faults.Open(t, b.db)
			h := b.batch(4, apply, on(b.newStore(pool.DB)))
			b.must(h, newMessages(4))
			b.db.Do(t, `DELETE FROM effects`)
			b.db.Do(t, `DELETE FROM millrace_claims`)
			msgs := newMessages(4)
			lose := faults.At(faults.Commit, func() error { pool.Set(faults.Plan{}); return faults.ErrLost })
			if committed {
				pool.Set(faults.Plan{After: lose})
			} else {
				pool.Set(faults.Plan{Before: lose})
			}
			b.must(h, msgs)
			b.once(msgs)
			b.idle(pool.DB)
		}
	})},
	{Name: "a connection that is lost at each statement", Why: "each message is handled once, whatever is lost", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		for _, at := range []string{faults.Begin, "INTO millrace_claims", "INTO effects", faults.Commit} {
			for _, before := range []bool{true, false} {
				pool := faults.Open(t, b.db)
				store := b.newStore(pool.DB)
				b.must(b.batch(4, apply, on(store)), newMessages(4))
				b.db.Do(t, `DELETE FROM effects`)
				b.db.Do(t, `DELETE FROM millrace_claims`)
				msgs := newMessages(4)
				lose := faults.At(at, func() error { pool.Set(faults.Plan{}); return faults.ErrLost })
				if before {
					pool.Set(faults.Plan{Before: lose})
				} else {
					pool.Set(faults.Plan{After: lose})
				}
				h := b.batch(4, apply, on(store), func(b *millrace.Batch) { b.Linger = 0 })
				for todo := msgs; len(todo) > 0; {
					var failed []*message.Message
					for i, err := range b.errs(start(h, copies(todo))) {
						if err != nil {
							failed = append(failed, todo[i])
						}
					}
					todo = failed
				}
				b.once(msgs)
				b.idle(pool.DB)
			}
		}
	})},
	{Name: "messages for the outbox", Why: "they are committed with the batch, and name what caused them", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		out := rig.NewOutbox(t, b.db.DB, outbox.Config{})
		fail := errBoom
		batch := millrace.Batch{Inbox: millrace.Inbox{Store: b.store, Consumer: "billing", Outbox: out}, Max: 4, Linger: rig.Patience}
		router := rig.NewRouter(t)
		feed := rig.NewFeed()
		router.AddPlugin(batch.Plugin())
		router.AddHandler("billing", "orders", feed, "invoices", &rig.Publisher{}, batch.Handler(
			func(ctx context.Context, msgs []*message.Message) ([]*message.Message, error) {
				if len(msgs) == 1 {
					return nil, errBoom // its own try, after the batch failed
				}
				var made []*message.Message
				for _, m := range msgs {
					own := message.NewMessage("own "+m.UUID, nil)
					own.SetContext(m.Context())
					made = append(made, own)
				}
				if err := out.Publish("own", made...); err != nil {
					return nil, err
				}
				returned := newMessages(len(msgs))
				return append(returned, msgs[0]), errors.Join(apply(ctx, msgs), fail)
			}))
		rig.Run(t, router)
		msgs := newMessages(4)
		for _, m := range msgs {
			feed.Send(t, m)
		}
		for _, m := range msgs {
			assert.False(t, rig.Answer(t, m))
		}
		assert.Zero(t, b.db.Count(t, `SELECT COUNT(*) FROM millrace_outbox`))
		fail = nil
		for _, m := range copies(msgs) {
			feed.Send(t, m)
		}
		rig.Eventually(t, "four effects", func() bool { return b.effects() == 4 })
		b.once(msgs)
		assert.Equal(t, 9, b.db.Count(t, `SELECT COUNT(*) FROM millrace_outbox`))
		caused, err := out.CausedBy(t.Context(), "billing", msgs[2].UUID, time.Now().Add(-time.Hour), time.Now())
		require.NoError(t, err)
		require.Len(t, caused, 1)
		assert.Equal(t, "own "+msgs[2].UUID, caused[0].UUID)
	})},
	{Name: "a flood through a router", Why: "what is in flight gathers by itself, and each message is handled once", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		const n = 500
		var seen sizes
		batch := millrace.Batch{Inbox: millrace.Inbox{Store: b.store}}
		router := rig.NewRouter(t)
		feed := rig.NewFeed()
		router.AddPlugin(batch.Plugin())
		router.AddConsumerHandler("billing", "orders", feed, batch.ConsumerHandler(seen.of(apply)))
		rig.Run(t, router)
		msgs := newMessages(n)
		for _, m := range append(msgs, copies(msgs)...) {
			go feed.Give(m)
		}
		for _, m := range msgs {
			assert.True(t, rig.Answer(t, m))
		}
		rig.Eventually(t, "all copies are answered", func() bool { return b.events.Count("duplicate") == n })
		b.once(msgs)
		assert.Less(t, len(seen.seen()), n/2)
		for _, line := range b.events.Logs() {
			assert.Contains(t, line, "a setting of the database should be changed")
		}
	})},
	{Name: "transactions that begin anew", Why: "the deadlocks of the claims are tried again", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		if b.db.Dialect == "sqlite" {
			return
		}
		pool := faults.Open(t, b.db)
		h := b.batch(4, apply, on(b.newStore(pool.DB)))
		deadlock := faults.At("INTO millrace_claims", func() error {
			pool.Set(faults.Plan{})
			return deadlocked("40P01")
		})
		pool.Set(faults.Plan{Before: deadlock})
		msgs := newMessages(4)
		b.must(h, msgs)
		b.once(msgs)
		assert.Equal(t, 1, b.events.Count("contention"))
		assert.Equal(t, 4, b.events.Count("completed"))
	})},
}

type deadlocked string

func (deadlocked) Error() string      { return "deadlock" }
func (s deadlocked) SQLState() string { return string(s) }
