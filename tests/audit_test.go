package tests_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	relaying "github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

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
