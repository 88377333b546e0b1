package replay_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/replay"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestReplays(t *testing.T) {
	testdb.Conformance(t, slices.Concat(bodies, planBodies, journalBodies, deadBodies, drainBodies, panicBodies))
}

// sink is a broker that keeps what it gets, and fails when it is told to.
type sink struct {
	rig.Publisher
	fails error
}

func (s *sink) Publish(topic string, msgs ...*message.Message) error {
	if s.fails != nil {
		return s.fails
	}
	return s.Publisher.Publish(topic, msgs...)
}

// durable runs h behind a queue that serves a consumer.
func (b *bed) durable(consumer string, epoch int, h message.HandlerFunc, change ...func(*millrace.Inbox)) {
	b.Helper()
	sub, err := pubsub.Durable{
		Store: b.store, Consumer: consumer, Epoch: epoch, Mode: pubsub.StoreFirst, Poll: 20 * time.Millisecond,
		MaxAttempts: 1, MinBackoff: time.Millisecond, MaxBackoff: time.Millisecond,
	}.Decorate(rig.NewFeed())
	require.NoError(b, err)
	router := rig.NewRouter(b)
	i := millrace.Inbox{Store: b.store, Consumer: consumer, Options: inbox.Options{Epoch: epoch}}
	for _, c := range change {
		c(&i)
	}
	router.AddMiddleware(i.Middleware)
	router.AddConsumerHandler(consumer, "orders", sub, func(msg *message.Message) error {
		_, err := h(msg)
		return err
	})
	go func() { _ = router.Run(context.WithoutCancel(b.Context())) }()
	<-router.Running()
	b.Cleanup(func() { _ = router.Close() })
	rig.Eventually(b, "the queue serves", func() bool {
		return b.count(`SELECT COUNT(*) FROM millrace_consumers WHERE name = ? AND epoch = ? AND served_until > 0`, []byte(consumer), epoch) == 1
	})
}

// put stores msg as a queue's intake does, so that its consumer is known.
func (b *bed) put(consumer string, epoch int, msgs ...*message.Message) *inbox.Queue {
	b.Helper()
	q := rig.Queue(b, b.store, inbox.QueueConfig{Consumer: consumer, Epoch: epoch})
	require.NoError(b, q.Put(b.Context(), "orders", msgs...))
	return q
}

func order(i int) *message.Message {
	account, cents := amount(i)
	msg := message.NewMessage(watermill.NewUUID(), fmt.Appendf(nil, "%d pays %d", account, cents))
	msg.Metadata.Set("correlation_id", fmt.Sprint("order ", i))
	return msg
}

var bodies = []testdb.Body{
	{Name: "what is sent again", Why: "ids, keys, payloads and headers are kept, the replay and how often are added", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.orders(3)
		b.exec(`UPDATE millrace_outbox SET order_key = 'a key' WHERE id = 2`)
		b.relay()
		rig.Eventually(b, "all are sent", func() bool { return b.sent() == 3 && b.pending() == 0 })
		first := append([]*message.Message{}, b.seen...)
		status := b.run(b.request("one"))
		assert.Equal(t, 3, status.Sent)
		rig.Eventually(b, "they are sent again", func() bool { return b.sent() == 6 && b.pending() == 0 })
		assert.Equal(t, 2, b.count(`SELECT COUNT(*) FROM millrace_outbox WHERE order_key = 'a key'`))
		again := map[string]*message.Message{}
		for _, msg := range b.seen[3:] {
			again[msg.UUID] = msg
		}
		for _, msg := range first {
			require.Contains(t, again, msg.UUID)
			got := again[msg.UUID]
			assert.Equal(t, "one", got.Metadata.Get(inbox.ReplayField))
			assert.Equal(t, "1", got.Metadata.Get(inbox.ReplayAttemptField))
			delete(got.Metadata, inbox.ReplayField)
			delete(got.Metadata, inbox.ReplayAttemptField)
			assert.True(t, msg.Equals(got))
		}
		status = b.run(b.request("two"))
		assert.Equal(t, 6, status.Sent, "what was replayed is in the archive, too")
		rig.Eventually(b, "they are sent again", func() bool { return b.sent() == 12 && b.pending() == 0 })
		attempts := map[string]int{}
		for _, msg := range b.seen[6:] {
			attempts[msg.Metadata.Get(inbox.ReplayAttemptField)]++
		}
		assert.Equal(t, map[string]int{"1": 3, "2": 3}, attempts)
		status = b.run(b.request("two"))
		assert.Equal(t, replay.Done, status.State)
		assert.Equal(t, 12, b.sent(), "what is done is done")
		entries, err := admin.New(b.store).Audit(t.Context(), admin.ConsumerFilter{}, 0, 10)
		require.NoError(t, err)
		require.Len(t, entries, 2)
		assert.Equal(t, "replay", entries[0].Action)
		assert.Equal(t, ada, entries[0].Operator)
	})},
	{Name: "a publisher that fails", Why: "the replay goes on where it was, at least once", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.archived(10)
		to := &sink{}
		r := b.request("one")
		r.To, r.PerSecond = replay.Publisher(to), 4
		down := errors.New("the broker is down")
		r.Progress = func(s replay.Status) {
			if s.Sent == 4 {
				to.fails = down
			}
		}
		status, err := b.replayer().Run(t.Context(), r)
		require.ErrorIs(t, err, down)
		assert.Equal(t, 4, status.Sent)
		to.fails, r.Progress, r.PerSecond = nil, nil, 1000
		status = b.run(r)
		assert.Equal(t, 10, status.Sent)
		assert.Len(t, to.Messages(), 10)
	})},
	{Name: "end a replay", Why: "who sends it stops, and nobody goes on with it", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.archived(10)
		r := b.request("one")
		r.PerSecond = 4
		r.Progress = func(replay.Status) { require.NoError(t, b.replayer().Cancel(t.Context(), "one", ada)) }
		status, err := b.replayer().Run(t.Context(), r)
		require.ErrorIs(t, err, replay.ErrCancelled)
		assert.Equal(t, 4, status.Sent)
		assert.Equal(t, 4, b.pending())
		r.Progress = nil
		_, err = b.replayer().Run(t.Context(), r)
		require.ErrorIs(t, err, replay.ErrCancelled)
		require.Error(t, b.replayer().Cancel(t.Context(), "one", ada))
		require.ErrorIs(t, b.replayer().Cancel(t.Context(), "two", ada), replay.ErrNotFound)
		all, err := b.replayer().List(t.Context(), 10)
		require.NoError(t, err)
		require.Len(t, all, 1)
		assert.Equal(t, replay.Cancelled, all[0].State)
	})},
	{Name: "two processes send one replay", Why: "one of them finds that it is taken, and nothing is sent twice", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.archived(10)
		r := b.request("one")
		r.PerSecond = 4
		r.Progress = func(s replay.Status) {
			if s.Sent == 4 {
				other := b.request("one")
				b.run(other)
			}
		}
		_, err := b.replayer().Run(t.Context(), r)
		require.Error(t, err)
		assert.True(t, errors.Is(err, replay.ErrTaken), err)
		assert.Equal(t, 10, b.pending())
		other := b.request("one")
		other.Filter.Topic = ""
		_, err = b.replayer().Run(t.Context(), other)
		require.ErrorIs(t, err, replay.ErrOther)
	})},
	{Name: "two processes publish one replay", Why: "one of them finds that it is taken before it sends a batch", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.archived(10)
		to := &sink{}
		r := b.request("one")
		r.To, r.PerSecond = replay.Publisher(to), 4
		r.Progress = func(s replay.Status) {
			if s.Sent == 4 {
				other := r
				other.Progress, other.PerSecond = nil, 1000
				assert.Equal(t, 10, b.run(other).Sent)
			}
		}
		status, err := b.replayer().Run(t.Context(), r)
		require.ErrorIs(t, err, replay.ErrTaken)
		assert.Equal(t, 10, status.Sent)
		assert.Len(t, to.Messages(), 10)
	})},
	{Name: "end a replay that publishes", Why: "no batch is sent after the end", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.archived(10)
		to := &sink{}
		r := b.request("one")
		r.To, r.PerSecond = replay.Publisher(to), 4
		r.Progress = func(replay.Status) { require.NoError(t, b.replayer().Cancel(t.Context(), "one", ada)) }
		status, err := b.replayer().Run(t.Context(), r)
		require.ErrorIs(t, err, replay.ErrCancelled)
		assert.Equal(t, 4, status.Sent)
		assert.Len(t, to.Messages(), 4)
	})},
	{Name: "end a replay of dead letters", Why: "no letter is sent after the end", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		to := &sink{}
		dead := replay.Dead{Name: "dead", Topic: "poison", To: replay.Publisher(to), By: ada, Idle: time.Minute}
		status, err := b.replayer().Drain(t.Context(), busy(t, dead, func() {
			require.NoError(t, b.replayer().Cancel(t.Context(), "dead", ada))
		}))
		require.ErrorIs(t, err, replay.ErrCancelled)
		assert.Equal(t, 1, status.Sent)
		assert.Len(t, to.Messages(), 1)
	})},
	{Name: "a request that is wrong", Why: "all of it is told at once", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		_, err := b.replayer().Run(t.Context(), replay.Request{PerSecond: -1})
		for _, want := range []string{"Name", "From", "To", "PerSecond", "By"} {
			require.ErrorContains(t, err, want)
		}
		for _, c := range []struct {
			from replay.Source
			to   replay.Target
			want string
		}{
			{replay.Archive(nil), replay.Outbox(b.out), "replay.Archive was given no *outbox.Publisher"},
			{replay.Journal(nil), replay.Outbox(b.out), "replay.Journal was given no *inbox.Store"},
			{replay.Archive(b.out), replay.Outbox(nil), "replay.Outbox was given no *outbox.Publisher"},
			{replay.Archive(b.out), replay.Queue(nil), "replay.Queue was given no *inbox.Queue"},
			{replay.Archive(b.out), replay.Publisher(nil), "replay.Publisher was given no message.Publisher"},
		} {
			r := b.request("x")
			r.From, r.To = c.from, c.to
			_, err = b.replayer().Run(t.Context(), r)
			require.ErrorContains(t, err, c.want)
			_, err = b.replayer().Plan(t.Context(), r)
			require.ErrorContains(t, err, c.want)
		}
		r := b.request("x")
		r.Filter.Consumer = "mail"
		_, err = b.replayer().Run(t.Context(), r)
		require.ErrorContains(t, err, "journal")
		_, err = b.replayer().Drain(t.Context(), replay.Dead{})
		require.ErrorContains(t, err, "Topic")
		_, err = b.replayer().Drain(t.Context(), replay.Dead{Name: "x", Topic: "poison", From: rig.NewFeed(), To: replay.Queue(nil), By: ada})
		require.ErrorContains(t, err, "replay.Queue was given no *inbox.Queue")
		_, err = b.replayer().Status(t.Context(), "x")
		require.ErrorIs(t, err, replay.ErrNotFound)
	})},
	{Name: "into side effects", Why: "refused unless the consumer is named, and then it handles them", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.archived(5)
		first := order(7)
		b.put("letters", 0, first)
		b.durable("letters", 0, b.mail, func(i *millrace.Inbox) { i.OnReplay = inbox.ReplayRefuse })
		rig.Eventually(b, "the consumer is known", func() bool { n, _ := b.mailed(); return n == 1 })
		queue := rig.Queue(t, b.store, inbox.QueueConfig{Consumer: "letters"})
		r := b.request("again")
		r.To = replay.Queue(queue)
		plan := b.plan(r)
		assert.Equal(t, []string{"letters"}, plan.SideEffects)
		_, err := b.replayer().Run(t.Context(), r)
		require.ErrorIs(t, err, replay.ErrSideEffects)
		require.ErrorContains(t, err, "letters")
		_, err = b.replayer().Status(t.Context(), "again")
		require.ErrorIs(t, err, replay.ErrNotFound)
		var refused []*message.Message
		require.NoError(t, func() error {
			kept, err := b.out.Archive(t.Context(), outbox.ArchiveFilter{}, 0, 2)
			for _, k := range kept {
				k.Message.Metadata.Set(inbox.ReplayField, "another")
				refused = append(refused, k.Message)
			}
			return err
		}())
		require.NoError(t, queue.Put(t.Context(), "orders", refused...))
		rig.Eventually(b, "two are refused", func() bool { return b.count(`SELECT COUNT(*) FROM millrace_messages WHERE status = 6`) == 2 })
		r.IntoSideEffects = []string{"letters"}
		b.run(r)
		rig.Eventually(b, "they are mailed", func() bool { n, _ := b.mailed(); return n == 6 })
		r.Name = "once more"
		b.run(r)
		rig.Eventually(b, "they are closed", func() bool { return b.count(`SELECT COUNT(*) FROM millrace_messages`) == 0 })
		_, mails := b.mailed()
		assert.Equal(t, 6, mails, "what it has completed is a duplicate")
	})},
	{Name: "side effects of those who listen", Why: "who had some of them, and not all, would park the rest", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.orders(5)
		b.relay()
		rig.Eventually(b, "all are handled", func() bool { return b.sent() == 5 && b.pending() == 0 })
		plan := b.plan(b.request("again"))
		assert.Empty(t, plan.SideEffects, "all of them are duplicates")
		var claimed [][]byte
		require.NoError(t, b.db.SelectContext(t.Context(), &claimed, `SELECT message_id FROM millrace_claims`))
		b.exec(`DELETE FROM millrace_claims WHERE message_id = ?`, claimed[0])
		plan = b.plan(b.request("again"))
		assert.Equal(t, []string{"mail"}, plan.SideEffects)
	})},
	{Name: "a queue that nobody serves", Why: "nothing is stored that nobody delivers", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.archived(1)
		r := b.request("x")
		r.To = replay.Queue(b.put("letters", 0, order(1)))
		_, err := b.replayer().Run(t.Context(), r)
		require.ErrorContains(t, err, "pubsub.Durable")
	})},
	{Name: "how many a second", Why: "what was held up is not made up for", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.archived(12)
		var sent []time.Time
		r := b.request("one")
		r.PerSecond = 4
		r.To = replay.Publisher(publishes(func() {
			if len(sent) == 0 {
				<-time.After(1800 * time.Millisecond) // the broker is slow for once
			}
			sent = append(sent, time.Now())
		}))
		b.run(r)
		require.Len(t, sent, 3)
		assert.GreaterOrEqual(t, sent[2].Sub(sent[0]), time.Second, "the second batch waits a second for the third")
	})},
	{Name: "the same times in another zone", Why: "it is the same request, and is gone on with", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.archived(1)
		since := time.Now().Add(-time.Hour)
		r := b.request("one")
		r.Filter.Since, r.Filter.Until = since.In(time.FixedZone("", 7200)), since.Add(2*time.Hour).In(time.FixedZone("", 7200))
		b.run(r)
		r.Filter.Since, r.Filter.Until = r.Filter.Since.UTC(), r.Filter.Until.UTC()
		b.run(r)
	})},
	{Name: "into a queue whose key only its service knows", Why: "its consumer refuses all the same unless it is named", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.archived(2)
		key := inbox.ByFunc("own", func(msg *message.Message) (string, error) { return msg.UUID, nil })
		queue := rig.Queue(t, b.store, inbox.QueueConfig{Consumer: "letters", Key: key})
		letters := millrace.Inbox{Store: b.store, Consumer: "letters", Key: key, Options: inbox.Options{OnReplay: inbox.ReplayRefuse}}.Middleware(b.mail)
		_, err := letters(order(1))
		require.NoError(t, err)
		b.exec(`UPDATE millrace_consumers SET served_until = 9000000000000000 WHERE name = ?`, []byte("letters"))
		r := b.request("x")
		r.To = replay.Queue(queue)
		plan := b.plan(r)
		assert.Equal(t, []string{"letters"}, plan.SideEffects)
		_, err = b.replayer().Run(t.Context(), r)
		require.ErrorIs(t, err, replay.ErrSideEffects)
		r.IntoSideEffects = []string{"letters"}
		b.run(r)
	})},
}

// publishes is a publisher that tells of each call.
type publishes func()

// Publish tells.
func (p publishes) Publish(string, ...*message.Message) error {
	p()
	return nil
}

// Close does nothing.
func (publishes) Close() error { return nil }

func (b *bed) count1(query string) (text string) {
	b.Helper()
	require.NoError(b, b.db.GetContext(b.Context(), &text, query))
	return text
}
