package tests_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	relaying "github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestActivityIsKept(t *testing.T) {
	testdb.Conformance(t, activityBodies)
}

// activity is what was done since an hour ago, without the minutes and the times.
func (b *bed) activity(store *inbox.Store) map[string]admin.Activity {
	b.Helper()
	all, err := admin.New(store).Activity(b.Context(), time.Now().Add(-time.Hour))
	require.NoError(b, err)
	sums := map[string]admin.Activity{}
	for _, a := range all {
		assert.WithinDuration(b, time.Now(), a.Minute, 5*time.Minute)
		assert.Zero(b, a.Minute.Second())
		sum := sums[fmt.Sprint(a.Consumer, a.Epoch)]
		sum.Completed += a.Completed
		sum.Failed += a.Failed
		sum.Duplicates += a.Duplicates
		sum.Parked += a.Parked
		sum.Handling += a.Handling
		sums[fmt.Sprint(a.Consumer, a.Epoch)] = sum
	}
	return sums
}

// withoutActivity runs work while the table is not there.
func (b *bed) withoutActivity(work func()) {
	b.Helper()
	b.exec(`ALTER TABLE millrace_activity RENAME TO millrace_away`)
	work()
	b.exec(`ALTER TABLE millrace_away RENAME TO millrace_activity`)
}

var activityBodies = []testdb.Body{
	{Name: "what processes did", Why: "the sum over all of them, by consumer and epoch", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		for range 2 {
			store := b.process()
			h := b.inbox(effect, on(store))
			msg := newMessage("x")
			must(t, h, again(msg))
			must(t, h, again(msg))
			must(t, h, message.NewMessage(msg.UUID, []byte("y")))
			must(t, b.inbox(effect, on(store), func(i *millrace.Inbox) { i.Epoch = 1 }), again(msg))
			rig.MustFail(t, b.inbox(alwaysFails, on(store)), newMessage("z"), errBoom)
			require.NoError(t, store.Close(t.Context()))
			require.NoError(t, store.Close(t.Context()), "there is nothing left to write")
		}
		got := b.activity(b.store)
		require.Len(t, got, 2)
		for name, a := range got {
			assert.Positive(t, a.Handling)
			assert.Less(t, a.Handling, time.Minute)
			a.Handling = 0
			got[name] = a
		}
		assert.Equal(t, map[string]admin.Activity{
			"billing0": {Completed: 2, Failed: 2, Duplicates: 2, Parked: 2},
			"billing1": {Completed: 2},
		}, got)
		assert.Empty(t, b.activity(b.newStore(b.db.DB, inbox.Config{Namespace: "other"})))
		later, err := admin.New(b.store).Activity(t.Context(), time.Now().Add(time.Hour))
		require.NoError(t, err)
		assert.Empty(t, later)
	})},
	{Name: "while it runs", Why: "figures are written before the process ends, and only where something was done", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		store := b.newStore(b.db.DB, inbox.Config{PurgeInterval: 10 * time.Millisecond})
		stopped := rig.Go(func() error { return store.Run(t.Context()) })
		_, err := store.Handler(inbox.ConsumerConfig{Name: "idle"}, effectless)
		require.NoError(t, err)
		must(t, b.inbox(effect, on(store)), newMessage("x"))
		require.Eventually(t, func() bool { return b.activity(b.store)["billing0"].Completed == 1 }, rig.Patience, 5*time.Millisecond)
		must(t, b.inbox(effect, on(store)), newMessage("y"))
		require.NoError(t, store.Close(t.Context()))
		require.NoError(t, <-stopped)
		got := b.activity(b.store)
		assert.Equal(t, int64(2), got["billing0"].Completed)
		assert.NotContains(t, got, "idle0")
	})},
	{Name: "figures that cannot be written", Why: "no delivery fails for them, one line says so, and none is lost", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		told := func() int {
			return strings.Count(strings.Join(b.events.Logs(), "\n"), "the activity could not be written")
		}
		must(t, b.inbox(effect), newMessage("x"))
		b.withoutActivity(func() {
			must(t, b.inbox(effect), newMessage("y"))
			for range 3 {
				require.NoError(t, b.store.Close(t.Context()))
			}
			assert.Equal(t, 1, told())
		})
		require.NoError(t, b.store.Close(t.Context()))
		assert.Equal(t, int64(2), b.activity(b.store)["billing0"].Completed)
		assert.Equal(t, 1, told())
	})},
	{Name: "activity of more than a day ago", Why: "the janitor deletes it, all of it", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		must(t, b.inbox(effect), newMessage("x"))
		require.NoError(t, b.store.Close(t.Context()))
		const old = 2500
		minute := time.Now().Add(-admin.ActivityKept).Truncate(time.Minute).UnixMicro()
		b.exec(fmt.Sprintf(`INSERT INTO millrace_activity (minute, consumer, completed, failed, duplicates, stale, held, parked, handling_us)
			WITH RECURSIVE n (j) AS (SELECT 0 UNION ALL SELECT j + 1 FROM n WHERE j < 49)
			SELECT %d - (a.j * 50 + b.j) * 3000000000, 1, 1, 0, 0, 0, 0, 0, 0 FROM n a CROSS JOIN n b`, minute))
		require.Equal(t, old+1, b.count(`SELECT COUNT(*) FROM millrace_activity`))
		store := b.process()
		rig.Purge(t, store)
		assert.Equal(t, 1, b.count(`SELECT COUNT(*) FROM millrace_activity`))
		assert.Equal(t, int64(1), b.activity(store)["billing0"].Completed)
	})},
}

func TestWhatOperatorsDidIsListed(t *testing.T) {
	testdb.Conformance(t, auditBodies)
}

// acts are the entries' actions.
func acts(entries []admin.AuditEntry) []string {
	all := make([]string, 0, len(entries))
	for _, e := range entries {
		all = append(all, e.Action)
	}
	return all
}

func (b *bed) audit(f admin.ConsumerFilter, before int64, limit int) []admin.AuditEntry {
	b.Helper()
	entries, err := admin.New(b.store).Audit(b.Context(), f, before, limit)
	require.NoError(b, err)
	return entries
}

// park leaves a parked collision, and returns it.
func (b *bed) park(change ...func(*millrace.Inbox)) admin.Message {
	b.Helper()
	h, msg := b.inbox(effect, change...), newMessage("first")
	must(b.T, h, again(msg))
	must(b.T, h, message.NewMessage(msg.UUID, []byte("second")))
	parked := rig.Parked(b, b.store)
	return parked[len(parked)-1]
}

var auditBodies = []testdb.Body{
	{Name: "who did what", Why: "for messages, consumers, aggregates and the outbox, the newest first", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		ctx := t.Context()
		assert.Empty(t, b.audit(admin.ConsumerFilter{}, 0, 10))
		parked := b.park()
		require.NoError(t, admin.New(b.store).Discard(ctx, parked.ID, operator))
		require.NoError(t, admin.New(b.store).SetVersion(ctx, inbox.Aggregate{Consumer: "billing", ID: "account 7"}, 3, operator))
		must(t, b.inbox(effect, func(i *millrace.Inbox) { i.Epoch = 2 }), newMessage("x"))
		require.NoError(t, admin.New(b.store).Pause(ctx, "billing", 2, admin.Operator{Name: "bob", Reason: "lunch"}))
		b.exec(`INSERT INTO millrace_outbox (key_hash, created_at, due_at, status, topic, uuid) VALUES (1, 1, 1, 3, 'orders', 'no key of ours')`)
		out := rig.NewOutbox(t, b.db.DB, relaying.Config{})
		letters, err := out.Parked(ctx, 0, 1)
		require.NoError(t, err)
		require.NoError(t, out.Discard(ctx, letters[0].ID, relaying.Operator{Name: "cy", Reason: "a test order"}))

		entries := b.audit(admin.ConsumerFilter{}, 0, 10)
		require.Equal(t, []string{"outbox discard", "pause", "set version", "discard", "discard"}, acts(entries))
		for i, newer := 0, int64(math.MaxInt64); i < len(entries); i++ {
			e := entries[i]
			assert.WithinDuration(t, time.Now(), e.At, time.Minute)
			assert.Positive(t, e.ID)
			assert.Less(t, e.ID, newer)
			newer = e.ID
			entries[i].ID, entries[i].At = 0, time.Time{}
		}
		assert.Equal(t, admin.AuditEntry{
			Action: "outbox discard", Operator: admin.Operator{Name: "cy", Reason: "a test order"},
			MessageID: "no key of ours", Detail: "to topic orders",
		}, entries[0])
		assert.Equal(t, admin.AuditEntry{
			Action: "pause", Operator: admin.Operator{Name: "bob", Reason: "lunch"}, Consumer: "billing", Epoch: 2,
			Detail: "what is stored for the consumer",
		}, entries[1])
		assert.Equal(t, "account 7", entries[2].MessageID)
		assert.Equal(t, operator, entries[2].Operator)
		assert.ElementsMatch(t, []string{parked.MessageID, parked.Original}, []string{entries[3].MessageID, entries[4].MessageID})
		assert.Contains(t, entries[3].Detail, parked.UUID)

		two := 2
		assert.Equal(t, []string{"pause"}, acts(b.audit(admin.ConsumerFilter{Consumer: "billing", Epoch: &two}, 0, 10)))
		assert.Equal(t, []string{"pause", "set version", "discard", "discard"}, acts(b.audit(admin.ConsumerFilter{Consumer: "billing"}, 0, 10)))
		assert.Empty(t, b.audit(admin.ConsumerFilter{Consumer: "mail"}, 0, 10))
		other := b.newStore(b.db.DB, inbox.Config{Namespace: "other"})
		seen, err := admin.New(other).Audit(ctx, admin.ConsumerFilter{}, 0, 10)
		require.NoError(t, err)
		assert.Equal(t, []string{"outbox discard"}, acts(seen), "the outbox has no namespace")
	})},
	{Name: "many of the outbox and of outcomes", Why: "an action has one entry, with a row for each message", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		ctx, ops := t.Context(), admin.New(b.store)
		out := rig.NewOutbox(t, b.db.DB, relaying.Config{})
		long := strings.Repeat("x", 200)
		later := time.Now().Add(time.Hour).UnixMicro()
		for i, row := range []struct {
			topic, uuid string
			parked      int64
		}{{"orders", "a", 1}, {"invoices", "b", 1}, {"orders", long, 1}, {"orders", "parked later", later}} {
			b.exec(`INSERT INTO millrace_outbox (key_hash, created_at, due_at, status, topic, uuid) VALUES (?, 1, ?, 3, ?, ?)`, i, row.parked, row.topic, row.uuid)
		}
		by := relaying.Operator{Name: "cy", Reason: "the exchange is there"}
		_, err := out.RetryAll(ctx, "", relaying.Operator{Name: "cy"}, nil)
		require.ErrorContains(t, err, "needs a Name and a Reason")
		require.NoError(t, relaying.InTx(ctx, b.db.DB, func(ctx context.Context, _ *sqlx.Tx) error {
			_, err := out.RetryAll(ctx, "", by, nil)
			require.ErrorContains(t, err, "not in a handler's transaction")
			return nil
		}))
		var told []int
		n, err := out.RetryAll(ctx, "orders", by, func(done int) {
			told = append(told, done)
			b.exec(`UPDATE millrace_outbox SET status = 4, sent_at = 1 WHERE uuid = ?`, "b") // somebody is faster
		})
		require.NoError(t, err)
		assert.Equal(t, []any{2, []int{1, 2}}, []any{n, told})
		n, err = out.DiscardAll(ctx, "invoices", by, nil)
		require.NoError(t, err)
		assert.Zero(t, n)
		assert.Equal(t, []string{"outbox retry"}, acts(b.audit(admin.ConsumerFilter{}, 0, 10)), "nothing has no entry")
		entry := b.audit(admin.ConsumerFilter{}, 0, 10)[0]
		assert.Equal(t, []any{int64(2), "", `parked messages, to topic "orders"`, "cy"}, []any{entry.Messages, entry.MessageID, entry.Detail, entry.Operator.Name})
		rows, err := ops.AuditMessages(ctx, entry.ID, 0, 10)
		require.NoError(t, err)
		require.Len(t, rows, 2)
		assert.Equal(t, []any{"a", "to topic orders", "to topic orders, uuid " + long}, []any{rows[0].MessageID, rows[0].Detail, rows[1].Detail})

		s := b.newService(invoice, b.patient().Middleware)
		s.published.FailWith(errBoom)
		var keys []string
		for range 3 {
			msg := newMessage("x")
			require.False(t, s.deliver(msg))
			keys = append(keys, msg.UUID)
		}
		require.NoError(t, s.router.Close())
		done, sent, err := ops.RedispatchAll(ctx, admin.ConsumerFilter{}, 0, 2, operator, s.published, admin.Pace{PerSecond: 1e6})
		assert.Zero(t, done+sent)
		require.ErrorIs(t, err, errBoom)
		assert.Len(t, b.audit(admin.ConsumerFilter{}, 0, 10), 1)
		s.published.FailWith(nil)
		pace := admin.Pace{Audit: new(int64)}
		for _, want := range []int{2, 1, 0} {
			done, sent, err = ops.RedispatchAll(ctx, admin.ConsumerFilter{Consumer: "billing"}, 0, 2, operator, s.published, pace)
			require.NoError(t, err)
			assert.Equal(t, []int{want, want}, []int{done, sent})
		}
		assert.Len(t, s.published.Messages(), 3)
		entry = b.audit(admin.ConsumerFilter{}, 0, 10)[0]
		assert.Equal(t, []any{"redispatch", int64(3), "billing", `outcomes, of consumer "billing", stored longer than 0s ago`},
			[]any{entry.Action, entry.Messages, entry.Consumer, entry.Detail})
		rows, err = ops.AuditMessages(ctx, entry.ID, 0, 10)
		require.NoError(t, err)
		var listed []string
		for _, r := range rows {
			listed = append(listed, r.MessageID)
			assert.Equal(t, `1 messages to topic "invoices"`, r.Detail)
		}
		assert.ElementsMatch(t, keys, listed)
		assert.Equal(t, "redispatch", rig.Story(t, b.store, keys[0]).Audit[0].Action)
	})},
	{Name: "pages of what was done", Why: "none is missing, and none comes twice", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		for _, name := range []string{"billing", "mail"} {
			must(t, b.inbox(effect, func(i *millrace.Inbox) { i.Consumer = name }), newMessage("x"))
		}
		for i := range 7 {
			by := admin.Operator{Name: fmt.Sprint(i), Reason: "to see"}
			require.NoError(t, admin.New(b.store).Pause(t.Context(), []string{"billing", "mail"}[i%2], 0, by))
		}
		var names []string
		for before := int64(0); ; {
			page := b.audit(admin.ConsumerFilter{}, before, 3)
			if len(page) == 0 {
				break
			}
			for _, e := range page {
				names = append(names, e.Operator.Name)
			}
			before = page[len(page)-1].ID
		}
		assert.Equal(t, []string{"6", "5", "4", "3", "2", "1", "0"}, names)
		for _, limit := range []int{0, admin.MaxPage + 1} {
			_, err := admin.New(b.store).Audit(t.Context(), admin.ConsumerFilter{}, 0, limit)
			require.ErrorContains(t, err, "is not between 1 and 1000")
		}
	})},
}
