package durable_test

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestTheBacklogIsKnown(t *testing.T) {
	testdb.Conformance(t, backlogBodies)
}

// put stores n messages for a consumer.
func (b *bed) put(consumer string, epoch, n int) *inbox.Queue {
	b.Helper()
	queue := rig.Queue(b, b.store, inbox.QueueConfig{Consumer: consumer, Epoch: epoch})
	require.NoError(b, queue.Put(b.Context(), "orders", newMessages(n)...))
	return queue
}

// become brings n RECEIVED messages into another state, due in so long.
func (b *bed) become(status admin.Status, n int, due time.Duration) {
	b.Helper()
	var ids []int64
	require.NoError(b, b.db.SelectContext(b.Context(), &ids,
		b.db.Rebind(`SELECT id FROM millrace_messages WHERE status = 1 ORDER BY id LIMIT ?`), n))
	for _, id := range ids {
		b.db.Do(b, `UPDATE millrace_messages SET status = ?, due_at = ? WHERE id = ?`, status, time.Now().Add(due).UnixMicro(), id)
	}
	b.db.Do(b, `UPDATE millrace_messages SET lease_token = 7 WHERE status = ?`, admin.InProgress)
}

func (b *bed) backlog(countTo int) []admin.Backlog {
	b.Helper()
	all, err := admin.New(b.process()).Backlog(b.Context(), admin.BacklogOptions{CountTo: countTo})
	require.NoError(b, err)
	return all
}

var backlogBodies = []testdb.Body{
	{Name: "the age of a retried message", Why: "it waits since an operator retried it, and not since it was stored", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.put(consumer, 0, 3)
		b.become(admin.Parked, 3, 0)
		b.db.Do(t, `UPDATE millrace_messages SET attempts = 10, received_at = ?`, time.Now().Add(-48*time.Hour).UnixMicro())
		b.db.Do(t, `UPDATE millrace_consumers SET served_until = ?`, time.Now().Add(time.Hour).UnixMicro())
		_, err := admin.New(b.store).RetryAll(t.Context(), admin.Filter{}, admin.Operator{Name: "ada", Reason: "the bank is back"}, nil, admin.Pace{})
		require.NoError(t, err)
		oldest := func() time.Duration { return b.backlog(0)[0].OldestPending }
		assert.Less(t, oldest(), time.Minute)
		b.db.Do(t, `UPDATE millrace_messages SET due_at = due_at - ?`, time.Hour.Microseconds())
		assert.InDelta(t, time.Hour, oldest(), float64(time.Minute), "nobody has taken it since")
		b.db.Do(t, `UPDATE millrace_messages SET lease_token = 7, due_at = ?`, time.Now().Add(time.Hour).UnixMicro())
		assert.Less(t, oldest(), time.Minute, "a process has it")
		b.db.Do(t, `UPDATE millrace_messages SET lease_token = 0`)
		assert.InDelta(t, 48*time.Hour, oldest(), float64(time.Minute), "it was put back to be tried later")
		b.db.Do(t, `UPDATE millrace_messages SET attempts = 1, due_at = ?`, time.Now().Add(-time.Hour).UnixMicro())
		assert.InDelta(t, 48*time.Hour, oldest(), float64(time.Minute), "it failed again")
	})},
	{Name: "the figures of a backlog", Why: "one for each state, told apart by what is due, by consumer and epoch", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		assert.Empty(t, b.backlog(0))
		b.put(consumer, 0, 37)
		b.become(admin.FailedRetryable, 2, -time.Hour)
		b.become(admin.FailedRetryable, 3, time.Hour)
		b.become(admin.InProgress, 4, time.Hour)
		b.become(admin.InProgress, 5, -time.Hour)
		b.become(admin.Settling, 6, -time.Hour)
		b.become(admin.FailedTerminal, 7, 1000*time.Hour)
		b.become(admin.Parked, 1, 1000*time.Hour)
		b.become(admin.Held, 8, -time.Hour)
		b.put(consumer, 1, 1)
		b.put("another", 0, 1)
		b.db.Do(t, `UPDATE millrace_messages SET attempts = 1, received_at = ?
			WHERE id = (SELECT id FROM (SELECT MIN(id) AS id FROM millrace_messages WHERE status = 4) oldest)`, time.Now().Add(-2*time.Hour).UnixMicro())
		n := func(n int) admin.Count { return admin.Count{N: n} }
		all := b.backlog(0)
		require.Len(t, all, 3)
		assert.Equal(t, []string{"another", consumer, consumer}, []string{all[0].Consumer, all[1].Consumer, all[2].Consumer})
		assert.Equal(t, 1, all[2].Epoch)
		assert.Equal(t, n(1), all[2].Due)
		got := all[1]
		assert.InDelta(t, 2*time.Hour, got.OldestPending, float64(time.Minute))
		assert.Positive(t, got.OldestHeld)
		got.OldestPending, got.OldestHeld = 0, 0
		assert.Equal(t, admin.Backlog{
			Consumer: consumer, Due: n(3), Waiting: n(3), InProgress: n(4), Stale: n(5), Settling: n(6),
			FailedTerminal: n(7), Parked: n(1), Held: n(8),
			Retention: 7 * 24 * time.Hour,
		}, got, "one more is RECEIVED")

		b.db.Do(t, `INSERT INTO millrace_outcomes (consumer, message_id, created_at, topic, messages)
			SELECT consumer, message_id, ?, topic, payload FROM millrace_messages WHERE status = 7`, time.Now().Add(-3*time.Hour).UnixMicro())
		got = b.backlog(0)[1]
		assert.Equal(t, n(8), got.Unsettled)
		assert.InDelta(t, 3*time.Hour, got.OldestUnsettled, float64(time.Minute))

		got = b.backlog(4)[1]
		most := admin.Count{N: 4, AtLeast: true}
		assert.Equal(t, []admin.Count{most, most, most}, []admin.Count{got.Unsettled, got.Settling, got.Held})
		assert.Equal(t, []admin.Count{n(3), n(1)}, []admin.Count{got.Due, got.Parked}, "exact up to the limit")
		assert.True(t, got.InProgress.AtLeast && got.Stale.AtLeast, "nine are IN_PROGRESS, five were looked at")
		assert.Equal(t, 5, got.InProgress.N+got.Stale.N)
		assert.Equal(t, "4+", got.Held.String())
		assert.Equal(t, "1", got.Parked.String())
		_, err := admin.New(b.store).Backlog(t.Context(), admin.BacklogOptions{CountTo: -1})
		require.ErrorContains(t, err, "negative")
	})},
	{Name: "the figures of messages whose time has not come", Why: "they wait, and nothing is late", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		tomorrow := func(*message.Message) time.Time { return time.Now().Add(24 * time.Hour) }
		b.storeIn(inbox.QueueConfig{NotBefore: tomorrow}, newMessages(3)...)
		b.db.Do(t, `UPDATE millrace_messages SET received_at = received_at - ?`, (2 * time.Hour).Microseconds())
		got := b.backlog(0)[0]
		assert.Equal(t, []admin.Count{{N: 3}, {}, {}}, []admin.Count{got.Waiting, got.Due, got.Taken})
		assert.Zero(t, got.OldestPending)
		b.put(consumer, 0, 1)
		b.db.Do(t, `UPDATE millrace_messages SET received_at = received_at - ?`, time.Hour.Microseconds())
		got = b.backlog(0)[0]
		assert.Equal(t, []admin.Count{{N: 3}, {N: 1}}, []admin.Count{got.Waiting, got.Due})
		assert.InDelta(t, time.Hour, got.OldestPending, float64(time.Minute), "that of the one behind them")
	})},
	{Name: "whether a queue serves the backlog", Why: "known in every process, and it lapses", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		queue := b.put(consumer, 0, 2)
		assert.False(t, b.backlog(0)[0].Served)
		began := time.Now()
		taken := rig.Take(t, queue, 1)
		require.Len(t, taken, 1)
		got := b.backlog(0)[0]
		assert.True(t, got.Served)
		assert.Equal(t, []admin.Count{{N: 1}, {N: 1}, {}}, []admin.Count{got.Taken, got.Due, got.InProgress})
		until := func() (until int64) {
			require.NoError(t, b.db.GetContext(t.Context(), &until, `SELECT served_until FROM millrace_consumers`))
			return until
		}
		assert.WithinRange(t, time.UnixMicro(until()), began.Add(17*time.Second), time.Now().Add(47*time.Second))
		rig.Eventually(b, "it is said every few seconds, not at each look", func() bool {
			said := until()
			rig.Take(t, queue, 1)
			return said == until()
		})
		b.unserve()
		assert.False(t, b.backlog(0)[0].Served)
		busy := rig.Queue(t, b.process(), inbox.QueueConfig{Consumer: consumer})
		require.NoError(t, busy.Extend(t.Context(), taken))
		assert.True(t, b.backlog(0)[0].Served, "a queue with all hands full takes nothing, but renews")
		elsewhere := rig.NewStore(t, b.db.DB, inbox.Config{Namespace: "elsewhere"})
		all, err := admin.New(elsewhere).Backlog(t.Context(), admin.BacklogOptions{})
		require.NoError(t, err)
		assert.Empty(t, all)
	})},
}

func TestAConsumerCanBePaused(t *testing.T) {
	testdb.Conformance(t, pauseBodies)
}

var pauseBodies = []testdb.Body{
	{Name: "a paused queue", Why: "takes nothing, in any process, and says so", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		require.ErrorIs(t, admin.New(b.store).Pause(t.Context(), consumer, 0, ada), inbox.ErrNotFound, "never heard of")
		here := b.storeIn(inbox.QueueConfig{}, newMessage(), newMessage())
		there := rig.Queue(t, b.process(), inbox.QueueConfig{Consumer: consumer})
		require.Error(t, admin.New(b.store).Pause(t.Context(), consumer, 0, admin.Operator{}))
		require.ErrorIs(t, admin.New(b.store).Pause(t.Context(), consumer, 1, ada), inbox.ErrNotFound)
		require.NoError(t, admin.New(b.store).Pause(t.Context(), consumer, 0, ada))
		for _, q := range []*inbox.Queue{here, there} {
			assert.False(t, q.Paused(), "not seen yet")
			taken, next, err := q.Take(t.Context(), 10, time.Minute)
			require.NoError(t, err)
			assert.Empty(t, taken)
			assert.Equal(t, time.Minute, next)
			assert.True(t, q.Paused())
		}
		backlog := b.backlog(0)
		require.Len(t, backlog, 1)
		assert.True(t, backlog[0].Paused)
		assert.True(t, backlog[0].Served, "a paused queue will go on")

		require.NoError(t, admin.New(b.process()).Resume(t.Context(), consumer, 0, ada))
		assert.Len(t, rig.Take(t, here, 10), 2)
		assert.False(t, here.Paused())
		assert.Equal(t, 1, b.audited("pause"))
		assert.Equal(t, 1, b.audited("resume"))
	})},
	{Name: "a queue that is in full swing", Why: "it reads the row of its consumer now and then, and is paused all the same", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		for _, by := range []*inbox.Store{b.store, b.process()} {
			q := b.storeIn(inbox.QueueConfig{}, newMessage())
			taken := rig.Take(t, q, 1)
			require.Len(t, taken, 1)
			require.NoError(t, q.PutBack(t.Context(), taken...))
			require.NoError(t, admin.New(by).Pause(t.Context(), consumer, 0, ada))
			rig.Eventually(b, "it is noticed", func() bool {
				taken := rig.Take(t, q, 1)
				require.NoError(t, q.PutBack(t.Context(), taken...))
				require.True(t, q.Paused() || by != b.store, "at once in this process")
				return len(taken) == 0
			})
			require.NoError(t, admin.New(by).Resume(t.Context(), consumer, 0, ada))
		}
	})},
	{Name: "a service whose consumer is resumed", Why: "goes on at once, without another look at the table", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage()
		b.storeIn(inbox.QueueConfig{}, msg)
		require.NoError(t, admin.New(b.store).Pause(t.Context(), consumer, 0, ada))
		durable := quick(b.store)
		durable.Mode, durable.Poll = pubsub.StoreFirst, time.Hour
		b.inboxed(durable, effect)
		rig.Eventually(b, "the queue looked", func() bool {
			return b.count(`SELECT COUNT(*) FROM millrace_consumers WHERE served_until > 0`) == 1
		})
		assert.Zero(t, b.effects(msg))
		assert.Equal(t, 1, b.open(admin.Received))
		require.NoError(t, admin.New(b.store).Resume(t.Context(), consumer, 0, ada))
		rig.Eventually(b, "it is handled", func() bool { return b.effects(msg) == 1 && b.rows() == 0 })
	})},
	{Name: "messages that arrive while their consumer is paused", Why: "are stored, in both modes", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		durable := quick(b.store)
		durable.Poll = time.Hour
		s := b.inboxed(durable, effect)
		assert.True(t, s.deliver(newMessage()))
		assert.Zero(t, b.rows(), "nothing is written for what succeeds")
		require.NoError(t, admin.New(b.store).Pause(t.Context(), consumer, 0, ada))
		delivered := 1
		rig.Eventually(b, "one is stored", func() bool {
			delivered++
			return s.deliver(newMessage()) && b.open(admin.Received) > 0
		})
		require.NoError(t, admin.New(b.store).Resume(t.Context(), consumer, 0, ada))
		rig.Eventually(b, "all are handled", func() bool { return b.rows() == 0 })
		assert.Equal(t, delivered, b.count(`SELECT COUNT(*) FROM effects`))
	})},
	{Name: "a consumer that is paused while its handlers hang", Why: "no handler gets what was taken before, nor what arrives", Run: testdb.With(newBed, func(_ *testing.T, b *bed) {
		all := newMessages(4)
		b.storeIn(inbox.QueueConfig{}, all...)
		b.pausedWhileBusy(all)
	})},
	{Name: "a consumer that is paused while a message waits to be delivered alone", Why: "it is not, and charged with nothing", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		all := newMessages(3)
		b.storeIn(inbox.QueueConfig{}, all...)
		b.db.Do(t, `UPDATE millrace_messages SET status = 2, lease_token = 5 WHERE uuid = ?`, []byte(all[2].UUID))
		b.pausedWhileBusy(all)
		assert.Zero(t, b.count(`SELECT COUNT(*) FROM millrace_messages WHERE attempts > 0`))
	})},
	{Name: "a service that starts while its consumer is paused", Why: "what is ready at its source is stored", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.storeIn(inbox.QueueConfig{}, newMessage()) // its consumer is known
		require.NoError(t, admin.New(b.store).Pause(t.Context(), consumer, 0, ada))
		durable, source, msg := quick(b.process()), rig.NewFeed(), newMessage()
		go source.Give(msg)
		sub, err := durable.Decorate(source)
		require.NoError(t, err)
		router := rig.NewRouter(t)
		router.AddMiddleware(inboxOf(durable))
		router.AddConsumerHandler(consumer, "orders", sub, effect)
		rig.Run(t, router)
		assert.True(t, rig.Answer(t, msg))
		assert.Zero(t, b.effects(msg))
		assert.Equal(t, 2, b.open(admin.Received))
	})},
}

// pausedWhileBusy has a handler hang at all but the last of these messages, while the last one is taken. Another process pauses
// the consumer, and a handler ends.
func (b *bed) pausedWhileBusy(stored []*message.Message) {
	b.Helper()
	b.db.Do(b, `UPDATE millrace_messages SET due_at = id`) // in this order
	var entered atomic.Int32
	goOn := make(chan struct{})
	durable := quick(b.store)
	durable.Concurrency = 2
	s := b.start(durable, silent(func(msg *message.Message) error {
		if slices.Contains(uuids(stored), msg.UUID) {
			entered.Add(1)
			<-goOn
		}
		return nil
	}))
	defer close(goOn)
	leased := func() int { return b.count(`SELECT COUNT(*) FROM millrace_messages WHERE lease_token <> 0`) }
	goOn <- struct{}{}
	others := len(stored) - 1
	rig.Eventually(b, "the last one is taken", func() bool { return int(entered.Load()) == others && b.rows() == others && leased() == others })
	require.NoError(b, admin.New(b.process()).Pause(b.Context(), consumer, 0, ada))
	rig.Eventually(b, "what arrives is stored", func() bool { return s.deliver(newMessage()) && b.rows() > others })
	goOn <- struct{}{}
	rig.Eventually(b, "the last one is put back", func() bool { return leased() == others-2 })
	assert.Equal(b, others, int(entered.Load()))
}
