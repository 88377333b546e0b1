package tests_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// outcomeBodies: what a handler returns reaches the broker, always the same.
var outcomeBodies = []testdb.Body{
	{Name: "returned messages are published", Why: "and the outcome is settled once the router acked", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		s := b.newService(invoice, b.patient().Middleware)
		msg := newMessage("x")
		assert.True(t, s.deliver(msg))
		assert.Len(t, s.published.Messages(), 1)
		require.NoError(t, s.router.Close())
		require.NoError(t, b.store.Close(t.Context()))
		assert.Equal(t, 0, b.count(`SELECT COUNT(*) FROM millrace_outcomes`))
		assert.Equal(t, 1, b.events.Count("settled"))
	})},
	{Name: "returned messages with the handler's context", Why: "they are published when it has ended", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		type mark struct{}
		router, box := b.router(b.patient().Middleware), &heeding{}
		s := &service{bed: b, feed: rig.NewFeed()}
		router.AddHandler("billing", "orders", s.feed, "invoices", box, func(msg *message.Message) ([]*message.Message, error) {
			ctx, end := context.WithTimeout(context.WithValue(msg.Context(), mark{}, "traced"), rig.Patience)
			defer end()
			return []*message.Message{message.NewMessageWithContext(ctx, "invoice", nil)}, apply(ctx, msg.UUID)
		})
		s.run(router)
		assert.True(t, s.deliver(newMessage("x")))
		require.Len(t, box.contexts, 1)
		assert.Equal(t, "traced", box.contexts[0].Value(mark{}))
		_, err := inbox.Tx(box.contexts[0])
		require.ErrorIs(t, err, inbox.ErrNoTx)
	})},
	{Name: "a service that closes before the ack", Why: "what was not acked is not settled, so the redelivery finds it", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		s := b.newService(invoice, b.patient().Middleware)
		s.published.FailWith(errBoom)
		assert.False(t, s.deliver(newMessage("x")))
		require.NoError(t, s.router.Close())
		require.NoError(t, b.store.Close(t.Context()))
		assert.Equal(t, 1, b.count(`SELECT COUNT(*) FROM millrace_outcomes`))
	})},
	{Name: "publishing fails after the commit", Why: "T1: the redelivery publishes the same messages, byte for byte", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		var first []*message.Message
		s := b.newService(func(msg *message.Message) (out []*message.Message, err error) {
			first, err = invoice(msg)
			return first, err
		}, b.patient().Middleware)
		s.published.FailWith(errBoom)
		msg := newMessage("x")
		assert.False(t, s.deliver(again(msg)))
		assert.False(t, s.deliver(again(msg)))
		assert.Equal(t, 1, b.effects())
		s.published.FailWith(nil)
		assert.True(t, s.deliver(again(msg)))
		assert.Equal(t, 1, b.effects())
		sent := s.published.Messages()
		require.Len(t, sent, len(first))
		for i := range sent {
			assert.Equal(t, first[i].UUID, sent[i].UUID)
			assert.Equal(t, first[i].Payload, sent[i].Payload)
			assert.Equal(t, first[i].Metadata, sent[i].Metadata)
		}
		require.NoError(t, s.router.Close())
		require.NoError(t, b.store.Close(t.Context()))
		assert.Equal(t, 0, b.count(`SELECT COUNT(*) FROM millrace_outcomes`))
	})},
	{Name: "the router closes before a handler returns messages", Why: "they are kept, and published by the redelivery", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		running := make(chan struct{})
		s := b.newService(func(msg *message.Message) ([]*message.Message, error) {
			close(running)
			<-msg.Context().Done()
			msg.SetContext(context.WithoutCancel(msg.Context()))
			return invoice(msg)
		}, b.patient().Middleware)
		s.published.FailWith(errBoom) // as the router closes publishers before its handlers return
		msg := newMessage("x")
		s.feed.Send(t, msg)
		<-running
		require.NoError(t, s.router.Close())
		assert.False(t, rig.Answer(s, msg))
		assert.Equal(t, 1, b.effects())
		assert.Equal(t, 1, b.count(`SELECT COUNT(*) FROM millrace_outcomes`))
	})},
	{Name: "a crash between commit and publish", Why: "I3: another process publishes the outcome", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage("x")
		crashed := b.newService(invoice, b.patient().Middleware)
		crashed.published.FailWith(errBoom)
		assert.False(t, crashed.deliver(again(msg)))
		require.NoError(t, crashed.router.Close())
		restarted := b.newService(invoice, millrace.Inbox{Store: b.process()}.Middleware)
		assert.True(t, restarted.deliver(again(msg)))
		assert.Len(t, restarted.published.Messages(), 1)
		assert.Equal(t, 1, b.effects())
	})},
	{Name: "an outcome that nobody asks for again", Why: "it is listed with its age, and Redispatch sends it", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		s := b.newService(invoice, b.patient().Middleware)
		s.published.FailWith(errBoom)
		msg := newMessage("x")
		assert.False(t, s.deliver(msg))
		old, err := admin.New(b.store).Unsettled(t.Context(), admin.ConsumerFilter{}, 0, 10)
		require.NoError(t, err)
		require.Len(t, old, 1)
		assert.Equal(t, "billing", old[0].Consumer)
		assert.Equal(t, msg.UUID, old[0].MessageID)
		assert.Equal(t, "invoices", old[0].Topic)
		none, err := admin.New(b.store).Unsettled(t.Context(), admin.ConsumerFilter{}, time.Hour, 10)
		require.NoError(t, err)
		assert.Empty(t, none)

		_, err = b.store.Redispatch(t.Context(), s.published, 0)
		require.ErrorIs(t, err, errBoom)
		s.published.FailWith(nil)
		n, err := b.store.Redispatch(t.Context(), s.published, 0)
		require.NoError(t, err)
		assert.Equal(t, 1, n)
		require.Len(t, s.published.Messages(), 1)
		assert.Equal(t, old[0].Messages[0].UUID, s.published.Messages()[0].UUID)
		assert.True(t, s.deliver(again(msg)))
		assert.Len(t, s.published.Messages(), 1, "settled: the redelivery publishes nothing")
	})},
	{Name: "an acked outcome is not redispatched", Why: "what was acked is settled first", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		late := &rig.Publisher{}
		b.store = b.newStore(b.db.DB, inbox.Config{Redispatch: late, RedispatchAfter: 1, WithoutPlugin: true})
		router := rig.NewRouter(t)
		router.AddMiddleware(b.patient().Middleware)
		s := b.serve(router, invoice)
		assert.True(t, s.deliver(newMessage("x")))
		stop := rig.Work(t, b.store)
		rig.Eventually(t, "it is settled", func() bool { return b.events.Count("settled") > 0 })
		stop()
		assert.Empty(t, late.Messages())
		assert.Equal(t, 0, b.count(`SELECT COUNT(*) FROM millrace_outcomes`))
	})},
	{Name: "an outcome while the janitor is busy", Why: "a long purge does not keep it from the broker", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		s := b.newService(invoice, b.patient().Middleware)
		s.published.FailWith(errBoom)
		assert.False(t, s.deliver(newMessage("x")))
		require.NoError(t, s.router.Close())
		require.NoError(t, b.store.Close(t.Context())) // its janitor
		must(t, b.inbox(effect, on(b.process())), newMessage("y"))
		b.age(8 * day)
		goOn, sent := make(chan struct{}), &rig.Publisher{}
		store := b.newStore(b.db.Open(t).DB, inbox.Config{
			Redispatch: sent, RedispatchAfter: 1, WithoutPlugin: true, PurgeInterval: 10 * time.Millisecond,
			Archive: func(context.Context, []inbox.ExpiredClaim) error { <-goOn; return nil },
		})
		stop := rig.Work(t, store)
		assert.Eventually(t, func() bool { return len(sent.Messages()) > 0 }, rig.Patience, 5*time.Millisecond)
		close(goOn)
		stop()
		require.NoError(t, store.Close(t.Context()))
	})},
	{Name: "an outcome that is just being settled", Why: "it is not redispatched by who looks meanwhile", Run: func(t *testing.T, db *testdb.DB) {
		// How long the other one has for its look. That it waits instead tells nobody.
		const look = 300 * time.Millisecond
		b := newBed(t, db)
		late := &rig.Publisher{}
		pool := faults.Open(t, db)
		b.store = b.newStore(pool.DB, inbox.Config{Redispatch: late, RedispatchAfter: 1, WithoutPlugin: true})
		settling := make(chan struct{})
		pool.Set(faults.Plan{Before: faults.At("DELETE FROM millrace_outcomes", func() error {
			pool.Set(faults.Plan{})
			close(settling)
			<-time.After(look)
			return nil
		})})
		router := rig.NewRouter(t)
		router.AddMiddleware(b.patient().Middleware)
		s := b.serve(router, invoice)
		assert.True(t, s.deliver(newMessage("x")))

		first := rig.Work(t, b.store)
		<-settling
		second := rig.Work(t, b.store)
		rig.Eventually(t, "it is settled", func() bool { return b.count(`SELECT COUNT(*) FROM millrace_outcomes`) == 0 })
		first()
		second()
		assert.Empty(t, late.Messages())
	}},
	{Name: "an outcome that cannot be read", Why: "I6: it stops no other", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		s := b.newService(invoice, b.patient().Middleware)
		s.published.FailWith(errBoom)
		assert.False(t, s.deliver(newMessage("x")))
		b.exec(`UPDATE millrace_outcomes SET messages = ?, created_at = created_at - 1000000`, []byte{99})
		assert.False(t, s.deliver(newMessage("x")))
		s.published.FailWith(nil)
		n, err := b.store.Redispatch(t.Context(), s.published, 0)
		require.ErrorContains(t, err, "newer release")
		assert.Equal(t, 1, n)
	})},
	{Name: "an outcome that cannot be opened", Why: "that it may not be published is logged all the same", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.store = b.newStore(b.db.DB, inbox.Config{
			Payloads: lockedAway{}, RedispatchAfter: 1, WithoutPlugin: true, PurgeInterval: 10 * time.Millisecond,
		})
		router := rig.NewRouter(t)
		router.AddMiddleware(b.patient().Middleware)
		s := b.serve(router, invoice)
		s.published.FailWith(errBoom)
		assert.False(t, s.deliver(newMessage("x")))
		isLogged := func(why string) {
			const line = "inbox: a message was handled, but what it produced may not be published"
			before := b.logged(line)
			stop := rig.Work(t, b.store)
			rig.Eventually(t, why, func() bool { return b.logged(line) > before })
			stop()
		}
		isLogged("its key is out of reach")
		b.exec(`UPDATE millrace_outcomes SET messages = ?`, []byte{99})
		isLogged("it is of a newer release")
	})},
	{Name: "a thousand outcomes that cannot be published", Why: "I6: those behind them have their turn", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		s := b.newService(invoice, b.patient().Middleware)
		s.published.FailWith(errBoom)
		assert.False(t, s.deliver(newMessage("x")))
		s.published.FailWith(nil)
		var id []byte
		require.NoError(t, b.db.GetContext(t.Context(), &id, `SELECT message_id FROM millrace_outcomes`))
		for n := range 1000 { // whose messages only a newer release could read
			b.exec(`INSERT INTO millrace_outcomes (consumer, message_id, topic, messages, created_at)
				SELECT consumer, ?, topic, ?, created_at - 1000000 FROM millrace_outcomes WHERE message_id = ?`,
				fmt.Appendf(nil, "stays-%d", n), []byte{99}, id)
		}
		n, err := b.store.Redispatch(t.Context(), s.published, 0)
		require.ErrorContains(t, err, "newer release")
		assert.Zero(t, n)
		n, err = b.store.Redispatch(t.Context(), s.published, 0)
		require.NoError(t, err)
		assert.Equal(t, 1, n)
		_, err = b.store.Redispatch(t.Context(), s.published, 0)
		require.ErrorContains(t, err, "newer release", "it begins anew")
	})},
	{Name: "a failed run publishes nothing", Why: "I4: nothing of a rolled-back run reaches the broker", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		s := b.newService(func(msg *message.Message) ([]*message.Message, error) {
			out, err := invoice(msg)
			return out, errors.Join(errBoom, err)
		}, b.patient().Middleware)
		assert.False(t, s.deliver(newMessage("x")))
		assert.Empty(t, s.published.Messages())
		assert.Equal(t, 0, b.count(`SELECT COUNT(*) FROM millrace_outcomes`))
	})},
	{Name: "a commit that fails publishes nothing", Why: "I4, where the answer to the commit says so", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		pool := faults.Open(t, b.db)
		s := b.newService(invoice, millrace.Inbox{Store: b.newStore(pool.DB, inbox.Config{})}.Middleware)
		assert.True(t, s.deliver(newMessage("warm up")))
		msg := newMessage("x")
		pool.Set(faults.Plan{Before: faults.Lose(faults.Commit)})
		assert.False(t, s.deliver(again(msg)))
		assert.Equal(t, 0, b.effectsOf(msg.UUID))
		pool.Set(faults.Plan{After: faults.Lose(faults.Commit)})
		assert.False(t, s.deliver(again(msg)))
		assert.Len(t, s.published.Messages(), 1)
		pool.Set(faults.Plan{})
		assert.True(t, s.deliver(again(msg)))
		assert.Len(t, s.published.Messages(), 2)
		assert.Equal(t, 1, b.effectsOf(msg.UUID))
	})},
	{Name: "a waiting copy while the outcome is on its way", Why: "a copy is not acked while the broker may lack what was produced", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		h, running, goOn := rig.Halted(invoice)
		s := b.newService(h, b.patient().Middleware)
		first := newMessage("x")
		copied := again(first)
		s.feed.Send(t, first)
		<-running
		s.feed.Send(t, copied)
		s.published.FailWith(errBoom)
		goOn()
		assert.False(t, rig.Answer(s, first))
		assert.False(t, rig.Answer(s, copied), "acked, though the outcome was not published")
		s.published.FailWith(nil)
		assert.True(t, s.deliver(again(first)))
		assert.Len(t, s.published.Messages(), 1)
	})},
	{Name: "returned messages go into an outbox", Why: "in the same transaction; the router publishes nothing", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.exec(`CREATE TABLE box (topic VARCHAR(100), uuid VARCHAR(100))`)
		box := &outbox{}
		s := b.newService(invoice, millrace.Inbox{Store: b.store, Outbox: box}.Middleware)
		box.fail = errBoom
		msg := newMessage("x")
		assert.False(t, s.deliver(again(msg)))
		assert.Equal(t, 0, b.effects())
		box.fail = nil
		assert.True(t, s.deliver(again(msg)))
		assert.True(t, s.deliver(again(msg)))
		assert.Equal(t, 1, b.effects())
		assert.Equal(t, 1, b.count(`SELECT COUNT(*) FROM box WHERE topic = 'invoices'`))
		assert.Equal(t, 0, b.count(`SELECT COUNT(*) FROM millrace_outcomes`))
		assert.Empty(t, s.published.Messages())
	})},
	{Name: "an outbox that is none", Why: "what it publishes is sent before the commit, and nothing else tells", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		s := b.newService(invoice, millrace.Inbox{Store: b.store, Outbox: &rig.Publisher{}}.Middleware)
		assert.True(t, s.deliver(newMessage("x")))
		assert.True(t, s.deliver(newMessage("x")))
		assert.Equal(t, 1, b.logged("inbox: Inbox.Outbox published without the transaction"))
	})},
	{Name: "an outbox after the handler committed by itself", Why: "a success that ended the transaction still has its messages stored", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.exec(`CREATE TABLE box (topic VARCHAR(100), uuid VARCHAR(100))`)
		s := b.newService(func(msg *message.Message) ([]*message.Message, error) {
			out, err := invoice(msg)
			tx, txErr := inbox.Tx(msg.Context())
			return out, errors.Join(err, txErr, tx.Commit())
		}, millrace.Inbox{Store: b.store, Outbox: &outbox{}}.Middleware)
		kept := 1
		if refusesCommits(b.db) {
			kept = 0
		}
		assert.Equal(t, kept == 1, s.deliver(newMessage("x")))
		assert.Equal(t, kept, b.count(`SELECT COUNT(*) FROM box`))
		assert.Equal(t, 1, b.events.Count("ended tx"))
	})},
	{Name: "returned messages without a topic", Why: "a clear error, and nothing is done", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		rig.MustFail(t, b.inbox(invoice), newMessage("x"), "no topic")
		assert.Equal(t, 0, b.effects())
	})},
	{Name: "an outcome whose key service answers nothing", Why: "the copy keeps its slot no longer than Timeout", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		codec := &slowKeys{}
		b.store = b.newStore(b.db.DB, inbox.Config{Payloads: codec})
		s := b.newService(invoice, b.patient().Middleware)
		s.published.FailWith(errBoom)
		msg := newMessage("x")
		assert.False(t, s.deliver(again(msg)))
		codec.away.Store(true)
		assert.False(t, b.newService(invoice, millrace.Inbox{Store: b.store, Timeout: time.Second}.Middleware).deliver(again(msg)))
		must(t, b.inbox(effect, func(i *millrace.Inbox) { i.Consumer = "another" }), newMessage("x"))
		codec.away.Store(false)
		s.published.FailWith(nil)
		assert.True(t, s.deliver(again(msg)))
		assert.Equal(t, 2, b.effects())
	})},
	{Name: "metadata that is not UTF-8, nil payload, nil metadata", Why: "what a handler returns comes back as it was", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		odd := []*message.Message{
			{UUID: "\xff", Metadata: message.Metadata{"\xfe": "\x00", "": ""}, Payload: []byte{0, 255}},
			{UUID: ""}, {UUID: "empty", Metadata: message.Metadata{}, Payload: []byte{}},
		}
		s := b.newService(func(msg *message.Message) ([]*message.Message, error) {
			out := make([]*message.Message, 0, len(odd))
			for _, m := range odd {
				c := message.NewMessage(m.UUID, m.Payload)
				c.Metadata = m.Metadata
				out = append(out, c)
			}
			return out, apply(msg.Context(), msg.UUID)
		}, b.patient().Middleware)
		s.published.FailWith(errBoom)
		msg := message.NewMessage("nil", nil)
		msg.Metadata = nil
		assert.False(t, s.deliver(again(msg)))
		outcomes, err := admin.New(b.store).Unsettled(t.Context(), admin.ConsumerFilter{}, 0, 1)
		require.NoError(t, err)
		require.Len(t, outcomes, 1)
		for i, m := range outcomes[0].Messages {
			assert.Equal(t, odd[i].UUID, m.UUID)
			assert.Equal(t, odd[i].Metadata, m.Metadata)
			assert.Equal(t, odd[i].Payload, m.Payload)
		}
		s.published.FailWith(nil)
		assert.True(t, s.deliver(again(msg)))
		assert.Len(t, s.published.Messages(), 3)
	})},
}

// invoice has an effect and returns a message.
func invoice(msg *message.Message) ([]*message.Message, error) {
	out := newMessage("invoice for " + msg.UUID)
	out.Metadata = message.Metadata{"name": "InvoiceIssued", "currency": "EUR"}
	return []*message.Message{out}, apply(msg.Context(), msg.UUID)
}
