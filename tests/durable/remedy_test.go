package durable_test

import (
	"context"
	"fmt"
	"slices"
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
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestOperatorsHaveMessagesTriedAgain(t *testing.T) {
	testdb.Conformance(t, remedyBodies)
}

// mendable is a service whose handler fails for good until it is mended.
type mendable struct {
	*service
	mended atomic.Bool
	runs   counter
}

// stuck starts a service that parks after one attempt, with n messages it cannot handle, and
// never looks at the table unless it is woken.
func (b *bed) stuck(n int) (s *mendable, msgs []*message.Message) {
	b.Helper()
	s = &mendable{}
	durable := storeFirst(b.store)
	durable.MaxAttempts, durable.Poll = 1, time.Hour
	for i := range n {
		msg := newMessage()
		msg.Metadata.Set("account", fmt.Sprint(i))
		msgs = append(msgs, msg)
	}
	b.storeIn(inbox.QueueConfig{}, msgs...)
	s.service = b.inboxed(durable, func(msg *message.Message) error {
		s.runs.run(msg)
		account := msg.Metadata.Get("account")
		switch {
		case s.mended.Load():
			return effect(msg)
		case len(account) > 1: // from 10 on
			return fmt.Errorf("account %s has no owner", account)
		}
		return fmt.Errorf("the bank said %q: %w", msg.UUID, inbox.Terminal(errBoom))
	})
	rig.Eventually(b, "all are stuck", func() bool { return b.open(admin.Parked)+b.open(admin.FailedTerminal) == n })
	return s, msgs
}

// unserve has the last queue's word lapse.
func (b *bed) unserve() {
	b.Helper()
	b.db.Do(b, `UPDATE millrace_consumers SET served_until = 1`)
}

func (b *bed) audited(action string) int {
	b.Helper()
	return b.count(`SELECT (SELECT COUNT(*) FROM millrace_audit WHERE action = ? AND bulk IS NULL) +
		(SELECT COUNT(*) FROM millrace_audit_messages m JOIN millrace_audit a ON a.id = m.entry WHERE a.action = ?)`,
		[]byte(action), []byte(action))
}

func (b *bed) find(f admin.Filter) []admin.Message {
	b.Helper()
	all, err := admin.New(b.store).Find(b.Context(), f, 0, admin.MaxPage)
	require.NoError(b, err)
	return all
}

// to is a publisher's topics and messages.
type to map[string][]*message.Message

func (t to) Publish(topic string, msgs ...*message.Message) error {
	t[topic] = append(t[topic], msgs...)
	return nil
}

func (t to) Close() error { return nil }

var remedyBodies = []testdb.Body{
	{Name: "retry where a queue serves", Why: "made due there and woken, from this process or another; attempts anew", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		s, msgs := b.stuck(2)
		sent := to{}
		first, second := b.find(admin.Filter{})[0], b.find(admin.Filter{})[1]
		require.NoError(t, admin.New(b.process()).Retry(t.Context(), second.ID, ada, sent), "elsewhere")
		require.NoError(t, admin.New(b.store).Retry(t.Context(), first.ID, ada, sent), "here: this wakes the queue for both")
		rig.Eventually(b, "both were tried again", func() bool {
			return s.runs.of(msgs[0]) == 2 && s.runs.of(msgs[1]) == 2 && b.open(admin.FailedTerminal) == 2
		})
		again := b.find(admin.Filter{Status: admin.FailedTerminal})
		assert.Equal(t, 1, again[0].Attempts, "they start anew")
		s.mended.Store(true)
		require.NoError(t, admin.New(b.store).Retry(t.Context(), first.ID, ada, nil))
		rig.Eventually(b, "it is handled", func() bool {
			return b.count(`SELECT COUNT(*) FROM effects WHERE uuid = ?`, first.UUID) == 1 && b.rows() == 1
		})
		assert.Empty(t, sent, "nothing went past the table")
		assert.Equal(t, 3, b.audited("retry"))
		require.ErrorIs(t, admin.New(b.store).Retry(t.Context(), first.ID, ada, nil), inbox.ErrNotFound)
	})},
	{Name: "retry where no queue serves", Why: "sent back with a publisher, refused without", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		s, msgs := b.stuck(1)
		require.NoError(t, s.router.Close())
		b.unserve()
		stuck := b.find(admin.Filter{})[0]
		require.ErrorIs(t, admin.New(b.store).Retry(t.Context(), stuck.ID, ada, nil), inbox.ErrNotServed)
		_, err := admin.New(b.store).RetryAll(t.Context(), admin.Filter{}, ada, nil, admin.Pace{})
		require.ErrorIs(t, err, inbox.ErrNotServed)
		assert.Zero(t, b.audited("retry"))
		assert.Equal(t, 1, b.open(admin.FailedTerminal))
		sent := to{}
		require.NoError(t, admin.New(b.store).Retry(t.Context(), stuck.ID, ada, sent))
		require.Len(t, sent["orders"], 1)
		assert.True(t, msgs[0].Equals(sent["orders"][0]))
		n, err := admin.New(b.store).RetryAll(t.Context(), admin.Filter{Status: admin.FailedRetryable}, ada, sent, admin.Pace{})
		require.NoError(t, err)
		assert.Equal(t, 1, n)
		assert.Len(t, sent["orders"], 2)
		assert.Equal(t, 2, b.audited("retry"))
	})},
	{Name: "many are sent back, and some cannot be", Why: "the others are, and what the publisher refuses waits for an operator again",
		Run: testdb.With(newBed, func(t *testing.T, b *bed) {
			b.leavesThree()
			b.db.Do(t, `UPDATE millrace_messages SET topic = ? WHERE id = ?`, []byte{}, b.find(admin.Filter{})[0].ID)
			before, ops, broker := b.find(admin.Filter{}), admin.New(b.store), &rig.Publisher{}
			broker.FailWith(errBoom)
			n, err := ops.RetryAll(t.Context(), admin.Filter{}, ada, broker, admin.Pace{})
			require.ErrorIs(t, err, errBoom)
			assert.Zero(t, n)
			assert.Equal(t, before, b.find(admin.Filter{}))
			assert.Equal(t, []int{2, 2}, []int{b.audited("retry"), b.audited("undo retry")}, "the second in a row ends the call")
			eve, meanwhile := admin.Operator{Name: "eve", Reason: ada.Reason}, &rig.Publisher{}
			n, err = ops.RetryAll(t.Context(), admin.Filter{}, ada, refuses(sync.OnceFunc(func() {
				require.NoError(t, ops.Retry(t.Context(), before[1].ID, eve, meanwhile))
			})), admin.Pace{})
			require.ErrorIs(t, err, errBoom)
			assert.Zero(t, n)
			assert.Len(t, meanwhile.Messages(), 1)
			assert.Equal(t, 1, b.open(admin.FailedRetryable), "eve's retry stands")
			assert.Equal(t, 3, b.audited("undo retry"))
			b.db.Do(t, `UPDATE millrace_messages SET status = ? WHERE status = ?`, before[1].Status, admin.FailedRetryable)
			broker.FailWith(nil)
			n, err = ops.RetryAll(t.Context(), admin.Filter{}, ada, broker, admin.Pace{})
			require.ErrorContains(t, err, "its topic is not known")
			assert.Equal(t, 2, n)
			assert.Len(t, broker.Messages(), 2)
		})},
	{Name: "a call for many that ends before all were sent back", Why: "it says what cannot be: the next call does not look there",
		Run: testdb.With(newBed, func(t *testing.T, b *bed) {
			b.leavesThree()
			b.db.Do(t, `UPDATE millrace_messages SET topic = ? WHERE id = ?`, []byte{}, b.find(admin.Filter{})[0].ID)
			ctx, cancel := context.WithCancel(t.Context())
			var mark int64
			pace := admin.Pace{Mark: &mark, Progress: func(done int) {
				if done > 0 { // in the middle of its batch
					cancel()
				}
			}}
			n, err := admin.New(b.store).RetryAll(ctx, admin.Filter{}, ada, &rig.Publisher{}, pace)
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorContains(t, err, "its topic is not known")
			assert.Equal(t, 1, n)
			assert.Equal(t, b.find(admin.Filter{})[1].ID, mark)
			n, err = admin.New(b.store).RetryAll(t.Context(), admin.Filter{}, ada, &rig.Publisher{}, admin.Pace{Mark: &mark})
			require.NoError(t, err)
			assert.Equal(t, 1, n)
		})},
	{Name: "many are sent back, and the publisher refuses one", Why: "it concerns one message only, in batches of any size", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.leavesThree()
		first, ops := b.find(admin.Filter{})[0], admin.New(b.store)
		for _, batch := range []int{0, 1} {
			broker := refusesOne(first.UUID)
			n, err := ops.RetryAll(t.Context(), admin.Filter{}, ada, broker, admin.Pace{PerSecond: batch})
			require.ErrorIs(t, err, errBoom)
			assert.Equal(t, 2, n)
			assert.Equal(t, []admin.Message{first}, b.find(admin.Filter{Status: first.Status}), "it waits for an operator again")
			b.db.Do(t, `UPDATE millrace_messages SET status = ? WHERE status = ?`, first.Status, admin.FailedRetryable)
		}
		before := b.find(admin.Filter{})
		n, err := ops.RetryAll(t.Context(), admin.Filter{}, ada, refuses(func() {}), admin.Pace{PerSecond: 1})
		require.ErrorIs(t, err, errBoom)
		assert.Zero(t, n)
		assert.Equal(t, before, b.find(admin.Filter{}))
		assert.Equal(t, 4, b.audited("undo retry"), "the second in a row ends the call, also in another batch")
	})},
	{Name: "a call for many whose Progress panics", Why: "Mark is behind the batch that is done", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.stuck(2)
		var mark int64
		last := b.find(admin.Filter{})[1].ID
		assert.Panics(t, func() {
			_, _ = admin.New(b.store).DiscardAll(t.Context(), admin.Filter{}, ada, admin.Pace{Mark: &mark, Progress: func(int) { panic(errBoom) }})
		})
		assert.Equal(t, last, mark)
		assert.Zero(t, b.rows())
	})},
	{Name: "messages without an error", Why: "they are a group to see, and not one to choose: that would be all messages", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.stuck(2)
		ops := admin.New(b.store)
		b.db.Do(t, `UPDATE millrace_messages SET error_group = NULL WHERE id = ?`, b.find(admin.Filter{})[0].ID)
		groups, err := ops.StuckGroups(t.Context(), 100)
		require.NoError(t, err)
		require.Len(t, groups, 2)
		rest := slices.IndexFunc(groups, func(g admin.FailureGroup) bool { return g.ErrorGroup == admin.NoError })
		require.NotEqual(t, -1, rest)
		assert.Equal(t, 1, groups[rest].Messages)
		_, err = ops.DiscardAll(t.Context(), admin.Filter{ErrorGroup: groups[rest].ErrorGroup}, ada, admin.Pace{})
		require.ErrorContains(t, err, "no group of errors")
		assert.Equal(t, 2, b.rows())
	})},
	{Name: "a group of failures", Why: "found by the shape of its errors, and tried again or discarded as one", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		s, msgs := b.stuck(130)
		groups, err := admin.New(b.store).FailureGroups(t.Context(), admin.Filter{Consumer: consumer})
		require.NoError(t, err)
		require.Len(t, groups, 2)
		owners, bank := groups[0], groups[1]
		assert.Equal(t, 120, owners.Messages)
		assert.Contains(t, owners.Shape, "account ? has no owner")
		assert.Regexp(t, `account \d+ has no owner`, owners.Error)
		assert.Equal(t, 10, bank.Messages)
		assert.Equal(t, []string{consumer}, bank.Consumers)
		assert.False(t, owners.First.After(owners.Last))
		assert.WithinDuration(t, time.Now(), owners.Last, time.Hour)
		one, err := admin.New(b.store).FailureGroups(t.Context(), admin.Filter{ErrorGroup: bank.ErrorGroup, Topic: "orders"})
		require.NoError(t, err)
		assert.Equal(t, []admin.FailureGroup{bank}, one)

		s.mended.Store(true)
		var racers sync.WaitGroup
		preview := func(f admin.Filter, countTo int) admin.Preview {
			all, err := admin.New(b.process()).Preview(t.Context(), f, countTo)
			require.NoError(t, err)
			require.Len(t, all, 1)
			return all[0]
		}
		assert.Equal(t, admin.Preview{Consumer: consumer, Served: true, Messages: admin.Count{N: 130}}, preview(admin.Filter{}, 1000))
		assert.Equal(t, admin.Count{N: 10}, preview(admin.Filter{ErrorGroup: bank.ErrorGroup}, 10).Messages)
		assert.Equal(t, "9+", preview(admin.Filter{ErrorGroup: bank.ErrorGroup}, 9).Messages.String())
		none, err := admin.New(b.store).Preview(t.Context(), admin.Filter{Status: admin.Held}, 9)
		require.NoError(t, err)
		assert.Empty(t, none)

		var retried atomic.Int64
		for _, store := range []*inbox.Store{b.store, b.process()} {
			racers.Go(func() {
				n, err := admin.New(store).RetryAll(t.Context(), admin.Filter{ErrorGroup: owners.ErrorGroup}, ada, nil, admin.Pace{})
				assert.NoError(t, err)
				retried.Add(int64(n))
			})
		}
		racers.Wait()
		assert.EqualValues(t, 120, retried.Load(), "each by one of them")
		assert.Equal(t, 120, b.audited("retry"))
		rig.Eventually(b, "the group is handled", func() bool { return b.rows() == 10 })
		assert.Equal(t, 120, b.count(`SELECT COUNT(*) FROM effects`))

		var progress []int
		n, err := admin.New(b.store).DiscardAll(t.Context(), admin.Filter{ErrorGroup: bank.ErrorGroup}, ada,
			admin.Pace{PerSecond: 9, Progress: func(done int) { progress = append(progress, done) }})
		require.NoError(t, err)
		assert.Equal(t, 10, n)
		assert.Equal(t, []int{9, 10}, progress)
		assert.Equal(t, 10, b.audited("discard"))
		assert.Zero(t, b.rows())
		assert.True(t, s.deliver(msgs[0]), "a late copy")
		rig.Eventually(b, "the copy is closed", func() bool { return b.rows() == 0 })
		assert.Zero(t, b.effects(msgs[0]))
	})},
	{Name: "the end of a call for many", Why: "it says how many are done, and another call goes on", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		s, _ := b.stuck(30)
		s.mended.Store(true)
		ctx, cancel := context.WithCancel(t.Context())
		pace := admin.Pace{PerSecond: 5, Progress: func(done int) {
			if done >= 10 {
				cancel()
			}
		}}
		began := time.Now()
		n, err := admin.New(b.store).DiscardAll(ctx, admin.Filter{}, ada, pace)
		require.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, []int{10, 10, 20}, []int{n, b.audited("discard"), b.rows()}, "at five in a second")
		assert.GreaterOrEqual(t, time.Since(began), time.Duration(n/5-1)*time.Second)
		rest, err := admin.New(b.store).RetryAll(t.Context(), admin.Filter{ReceivedUntil: time.Now().Add(time.Hour)}, ada, nil, admin.Pace{})
		require.NoError(t, err)
		assert.Equal(t, 30-n, rest)
		rig.Eventually(b, "the rest is handled", func() bool { return b.rows() == 0 })
	})},
	{Name: "a call for many that goes on where another ended", Why: "each message is taken once, though some fail again meanwhile", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		s, msgs := b.stuck(130)
		mark, number, done := int64(0), int64(0), 0
		for calls := 0; done < len(msgs); calls++ {
			require.Less(t, calls, 3)
			ctx, cancel := context.WithCancel(t.Context())
			first := admin.Pace{Mark: &mark, Audit: &number, Progress: func(int) { cancel() }} // ends behind its first batch
			n, err := admin.New(b.store).RetryAll(ctx, admin.Filter{}, ada, nil, first)
			if err != nil {
				require.ErrorIs(t, err, context.Canceled)
			}
			done += n
			rig.Eventually(b, "those fail again", func() bool { return b.open(admin.Parked)+b.open(admin.FailedTerminal) == len(msgs) })
		}
		assert.Equal(t, len(msgs), done)
		for _, msg := range msgs {
			assert.GreaterOrEqual(t, s.runs.of(msg), 2) // more if its lease, of a second, lapsed
		}
		ops := admin.New(b.store)
		entries, err := ops.Audit(t.Context(), admin.ConsumerFilter{}, 0, 10)
		require.NoError(t, err)
		require.Len(t, entries, 1)
		assert.EqualValues(t, len(msgs), entries[0].Messages)
		assert.Equal(t, number, entries[0].Bulk)
		assert.Equal(t, "messages that wait for an operator", entries[0].Detail)
		assert.Empty(t, entries[0].MessageID)
		retried := map[string]bool{}
		for after := int64(0); after < int64(len(msgs)); {
			page, err := ops.AuditMessages(t.Context(), entries[0].ID, after, 100)
			require.NoError(t, err)
			require.NotEmpty(t, page)
			for _, m := range page {
				after++
				assert.Equal(t, after, m.Number)
				retried[m.MessageID] = true
			}
		}
		assert.Len(t, retried, len(msgs), "each once")

		mark = 0
		eve := admin.Operator{Name: "eve", Reason: ada.Reason}
		_, err = ops.RetryAll(t.Context(), admin.Filter{}, eve, nil, admin.Pace{Mark: &mark, Audit: &number})
		require.ErrorContains(t, err, "of another operator", "nobody hides behind another's name")
		assert.Equal(t, len(msgs), b.audited("retry"))
		story, err := ops.Story(t.Context(), msgs[0].UUID)
		require.NoError(t, err)
		require.Len(t, story.Audit, 1)
		assert.Equal(t, ada, story.Audit[0].Operator)
		assert.Contains(t, story.Audit[0].Detail, msgs[0].UUID)

		elsewhere := admin.New(rig.NewStore(t, b.db.DB, inbox.Config{Namespace: "another"}))
		_, err = elsewhere.AuditMessages(t.Context(), entries[0].ID, 0, 10)
		require.ErrorIs(t, err, inbox.ErrNotFound)
		_, err = elsewhere.PruneAudit(t.Context(), admin.ConsumerFilter{}, time.Now(), ada)
		require.NoError(t, err)
		n, err := ops.PruneAudit(t.Context(), admin.ConsumerFilter{}, entries[0].At, ada)
		require.NoError(t, err)
		assert.Zero(t, n, "it is not older")
		assert.Equal(t, len(msgs), b.audited("retry"))
		n, err = ops.PruneAudit(t.Context(), admin.ConsumerFilter{}, time.Now().Add(time.Hour), ada)
		require.NoError(t, err)
		assert.Equal(t, 1, n)
		assert.Zero(t, b.audited("retry"))
		assert.Equal(t, 1, b.audited("prune audit"), "which stays")
		assert.Zero(t, b.count(`SELECT COUNT(*) FROM millrace_audit_messages`))
	})},
	{Name: "the context of a call for many ends at a message", Why: "everybody knows what happened to each: the call finishes it", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.leavesThree()
		pool := faults.Open(t, b.db)
		for _, call := range []string{"millrace_audit", faults.Commit} {
			ctx, cancel := context.WithCancel(t.Context())
			pool.Set(faults.Plan{Before: func(_ context.Context, c string) error {
				if strings.Contains(c, call) {
					cancel()
				}
				return nil
			}})
			sent, before := to{}, b.audited("retry")
			n, err := admin.New(b.newStore(pool.DB)).RetryAll(ctx, admin.Filter{}, ada, sent, admin.Pace{})
			require.ErrorIs(t, err, context.Canceled, call)
			assert.Equal(t, 1, n, call)
			assert.Len(t, sent["orders"], 1, call)
			assert.Equal(t, 1, b.audited("retry")-before, call)
		}
		assert.Equal(t, 1, b.open(admin.FailedTerminal), "the call did not reach it")
	})},
	{Name: "a collision that is tried again by its queue", Why: "it is the distinct message it is", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		s, msgs := b.stuck(1)
		s.mended.Store(true)
		assert.True(t, s.deliver(message.NewMessage(msgs[0].UUID, []byte("another"))))
		n, err := admin.New(b.store).RetryAll(t.Context(), admin.Filter{}, ada, nil, admin.Pace{})
		require.NoError(t, err)
		assert.Equal(t, 2, n)
		rig.Eventually(b, "both are handled", func() bool { return b.rows() == 0 })
		assert.Equal(t, 2, b.effects(msgs[0]))
		story, err := admin.New(b.store).Story(t.Context(), msgs[0].UUID)
		require.NoError(t, err)
		assert.Len(t, story.Audit, 2, "its own decision, and that about the collision with it")
	})},
}
