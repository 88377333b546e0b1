package batch_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

var transactions = []testdb.Body{
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
	{Name: "a context that is published", Why: "the next handler has no part in the transaction that it carries", Run: testdb.With(newBed, published)},
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
		batch.Inbox.TwinWait = rig.Patience
		router := rig.NewRouter(t)
		feed := rig.NewFeed()
		router.AddPlugin(batch.Plugin())
		router.AddMiddleware(middleware.CorrelationID) // which sees none of them
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
				returned, err := middleware.CorrelationID(func(*message.Message) ([]*message.Message, error) {
					return newMessages(1), nil
				})(msgs[1])
				require.NoError(t, err)
				returned = append(returned, newMessages(len(msgs)-1)...)
				return append(returned, msgs[0]), errors.Join(apply(ctx, msgs), fail)
			}))
		rig.Run(t, router)
		msgs := newMessages(4)
		for _, m := range msgs {
			middleware.SetCorrelationID("its order", m)
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
		assert.Equal(t, 2, b.db.Count(t, `SELECT COUNT(*) FROM millrace_outbox WHERE metadata LIKE '%its order%'`), "returned: one of CorrelationID inside, and msgs[0]")
		caused, err := out.CausedBy(t.Context(), "billing", msgs[2].UUID, time.Now().Add(-time.Hour), time.Now())
		require.NoError(t, err)
		require.Len(t, caused, 1)
		assert.Equal(t, "own "+msgs[2].UUID, caused[0].UUID)
	})},
	{Name: "transactions that begin anew", Why: "the deadlocks of the claims are tried again", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		if b.db.Dialect == "sqlite" {
			return
		}
		pool := faults.Open(t, b.db)
		h := b.batch(4, apply, on(b.newStore(pool.DB)))
		deadlock := faults.At("INTO millrace_claims", func() error {
			pool.Set(faults.Plan{})
			return faults.Deadlock(b.db.Dialect)
		})
		pool.Set(faults.Plan{Before: deadlock})
		msgs := newMessages(4)
		b.must(h, msgs)
		b.once(msgs)
		assert.Equal(t, 1, b.events.Count("contention"))
		assert.Equal(t, 4, b.events.Count("completed"))
	})},
	{Name: "a codec that loses a deadlock", Why: "the batch is undone, and its halves are tried", Run: func(t *testing.T, db *testdb.DB) {
		if db.Dialect != "mysql" { // PostgreSQL refuses what the codec does next, and SQLite has no deadlocks
			return
		}
		b, codec := newBed(t, db), faults.NewUnlucky(t, db)
		store := rig.NewStore(t, db.DB, inbox.Config{Payloads: codec, Logger: b.events})
		for what, handler := range map[string]handler{"journal": apply, "results": func(ctx context.Context, msgs []*message.Message) error {
			for _, m := range msgs {
				if err := inbox.SetResult(m.Context(), "of "+m.UUID); err != nil {
					return err
				}
			}
			return apply(ctx, msgs)
		}} {
			db.Do(t, `DELETE FROM effects`)
			db.Do(t, `DELETE FROM millrace_claims`)
			codec.Loses.Store(true)
			msgs := newMessages(4)
			b.must(b.batch(4, handler, on(store), func(b *millrace.Batch) { b.Inbox.Journal = what == "journal" }), msgs)
			assert.False(t, codec.Loses.Load(), what)
			b.once(msgs)
			assert.Equal(t, 4, db.Count(t, `SELECT COUNT(*) FROM millrace_`+what), what)
		}
	}},
}

// published has a batch publish with its context to a handler that fails at first.
func published(t *testing.T, b *bed) {
	channel := gochannel.NewGoChannel(gochannel.Config{PreserveContext: true, OutputChannelBuffer: 1}, watermill.NopLogger{})
	defer func() { assert.NoError(t, channel.Close()) }()
	next := rig.NewRouter(b)
	next.AddPlugin(b.store.Plugin())
	tries := make(chan error, 2)
	next.AddConsumerHandler("mails", "mails", channel, func(*message.Message) error {
		var err error
		if len(tries) == 0 {
			err = errBoom
		}
		tries <- err
		return err
	})
	rig.Run(b, next)
	var seen sizes
	msgs := newMessages(2)
	b.must(b.batch(2, seen.of(func(ctx context.Context, msgs []*message.Message) error {
		if err := channel.Publish("mails", message.NewMessageWithContext(ctx, "mail", nil)); err != nil {
			return err
		}
		rig.Eventually(t, "the mail is tried again", func() bool { return len(tries) == 2 })
		return apply(ctx, msgs)
	})), msgs)
	assert.Equal(t, []int{2}, seen.seen(), "the batch is not to blame")
	b.once(msgs)
}
