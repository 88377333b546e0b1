package durable_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

const day = 24 * time.Hour

// TestWhatWaited: a message that waits for longer than the retention is judged by the day on which it was stored.
func TestWhatWaited(t *testing.T) {
	t.Parallel()
	testdb.Conformance(t, waitedBodies)
}

var waitedBodies = []testdb.Body{
	{Name: "stored when it was new", Why: "no claim of it can have been deleted: its row was there", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := made(14*day + 30*time.Minute)
		b.storeIn(inbox.QueueConfig{}, msg)
		b.storedAgo(14 * day)
		b.forgotten(7 * day)
		b.judged()
		assert.Equal(t, 1, b.effects(msg))
	})},
	{Name: "stored when it was old", Why: "it may have been handled and forgotten before it was stored", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := made(20 * day)
		b.storeIn(inbox.QueueConfig{}, msg)
		b.storedAgo(14 * day)
		b.forgotten(7 * day)
		b.judged()
		assert.Equal(t, 0, b.effects(msg))
		assert.Contains(t, b.only(b.store, admin.Parked).Reason, "too old")
	})},
	{Name: "a copy that waits while its claim expires", Why: "the janitor keeps the claim, which tells that the message was handled", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := made(8*day + 30*time.Minute)
		b.handledIn(0, msg)
		b.storeIn(inbox.QueueConfig{}, msg)
		b.storedAgo(8 * day)
		b.db.Do(t, `UPDATE millrace_claims SET processed_at = processed_at - ?`, (8 * day).Microseconds())
		assert.Zero(t, rig.Purge(t, b.process()), "and closes the row")
		b.judged()
		assert.Equal(t, 1, b.effects(msg))
		assert.Zero(t, b.open(admin.Parked))
		rig.Eventually(t, "it expires after the row", func() bool {
			rig.Purge(t, b.process()) // passes over what another transaction has locked
			return b.count(`SELECT COUNT(*) FROM millrace_claims`) == 0
		})
	})},
	{Name: "moved to an epoch that has forgotten", Why: "that epoch may have handled it while it waited in the other one", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := made(9*day + 30*time.Minute)
		b.storeIn(inbox.QueueConfig{}, msg)
		b.storedAgo(9 * day)
		b.handledIn(1, msg)
		b.db.Do(t, `UPDATE millrace_claims SET processed_at = processed_at - ?`, (8 * day).Microseconds())
		require.Equal(t, 1, rig.Purge(t, b.process()))
		durable := quick(b.store)
		durable.Epoch = 1
		s := b.inboxed(durable, effect)
		rig.Eventually(t, "it is parked, or handled again", func() bool { return b.open(admin.Parked) == 1 || b.rows() == 0 })
		require.NoError(t, s.router.Close())
		assert.Equal(t, 1, b.effects(msg))
	})},
	{Name: "a former key whose claim was deleted while it waited", Why: "the epoch before knows nothing of its row", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := made(9*day + 30*time.Minute)
		msg.Metadata.Set("order", "7")
		b.handledIn(0, msg)
		b.storeIn(inbox.QueueConfig{Epoch: 1, Key: inbox.ByMetadata("order")}, msg)
		b.storedAgo(9 * day)
		b.db.Do(t, `UPDATE millrace_claims SET processed_at = processed_at - ?`, (8 * day).Microseconds())
		require.Equal(t, 1, rig.Purge(t, b.process()))
		_, next := b.releases(pubsub.StoreFirst, silent(effect))
		s := next()
		rig.Eventually(t, "it is parked, or handled again", func() bool { return b.open(admin.Parked) == 1 || b.rows() == 0 })
		require.NoError(t, s.router.Close())
		assert.Equal(t, 1, b.effects(msg))
	})},
	{Name: "handled by another system while it waited", Why: "an import keeps its key, however old it is", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg, other := made(9*day+30*time.Minute), newMessage()
		b.storeIn(inbox.QueueConfig{}, msg)
		b.storedAgo(9 * day)
		all := func(yield func(admin.Imported, error) bool) {
			for _, id := range []string{msg.UUID, other.UUID} {
				if !yield(admin.Imported{Key: []string{id}, ProcessedAt: time.Now().Add(-8 * day)}, nil) {
					return
				}
			}
		}
		want, config := admin.ImportReport{New: 1, Expired: 1}, inbox.ConsumerConfig{Name: consumer}
		report, err := admin.New(b.store).PreviewImport(t.Context(), config, all)
		require.NoError(t, err)
		assert.Equal(t, want, report)
		report, err = admin.New(b.store).Import(context.WithoutCancel(t.Context()), config, all, ada, admin.Pace{})
		require.NoError(t, err)
		assert.Equal(t, want, report)
		b.judged()
		assert.Equal(t, 0, b.effects(msg))
		assert.Zero(t, b.open(admin.Parked))
	})},
}

// handledIn has a process without a queue handle a copy of msg in an epoch.
func (b *bed) handledIn(epoch int, msg *message.Message) {
	b.Helper()
	in := millrace.Inbox{Store: b.process(), Consumer: consumer}
	in.Epoch = epoch
	require.NoError(b, do(in.Middleware(silent(effect)), msg.Copy()))
}

// made is a message that says it was made so long ago.
func made(ago time.Duration) *message.Message {
	msg := newMessage()
	msg.Metadata.Set("ce_time", time.Now().Add(-ago).Format(time.RFC3339Nano))
	return msg
}

// storedAgo has all messages be stored so long ago.
func (b *bed) storedAgo(ago time.Duration) {
	b.Helper()
	b.db.Do(b, `UPDATE millrace_messages SET received_at = received_at - ?`, ago.Microseconds())
}

// forgotten has the janitor have deleted claims so old.
func (b *bed) forgotten(age time.Duration) {
	b.Helper()
	b.db.Do(b, `UPDATE millrace_consumers SET purge_line = created_at - ?`, age.Microseconds())
}

// judged delivers what is stored, until it is handled or parked.
func (b *bed) judged() {
	b.Helper()
	s := b.inboxed(storeFirst(b.store), effect)
	rig.Eventually(b, "it is handled, or parked", func() bool { return b.rows() == b.open(admin.Parked) })
	require.NoError(b, s.router.Close())
}
