package durable_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// A text of the tables that another one has taken the place of.
const reworded, refusal = "in other words", `replayed by accident, says the handler of "orders"`

func (b *bed) reword(reason string) {
	b.Helper()
	b.db.Do(b, `UPDATE millrace_messages SET reason = ?`, []byte(reason))
}

// forgetAudit deletes what the audit table holds.
func (b *bed) forgetAudit() {
	b.Helper()
	require.Positive(b, b.count(`SELECT COUNT(*) FROM millrace_audit`))
	b.db.Do(b, `DELETE FROM millrace_audit`)
}

// believedServed has adas believe that a queue delivers what is stored.
func (b *bed) believedServed() {
	b.Helper()
	b.db.Do(b, `UPDATE millrace_consumers SET served_until = 9000000000000000`)
}

// stateBodies: what happens next is in columns. Neither a text nor the audit table decides it.
var stateBodies = []testdb.Body{
	{Name: "the audit table is emptied after the Retry of a refused replay", Why: "the message is allowed, whoever remembers by whom", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		for mode, name := range []string{"on failure", "first"} {
			durable := quick(b.store)
			durable.Mode, durable.Consumer = pubsub.Mode(mode), name
			s, msg := b.inboxed(durable, effect, refuse), replayed(newMessage())
			row := s.parks(msg)
			require.NoError(t, s.router.Close())
			b.believedServed()
			require.NoError(t, admin.New(b.store).Retry(t.Context(), row.ID, ada, nil), name)
			b.forgetAudit()
			s = b.inboxed(durable, effect, refuse)
			rig.Eventually(b, "it is handled, or refused again", func() bool { return b.rows() == 0 || b.open(admin.Parked) == 1 })
			assert.True(t, s.deliver(msg), name)
			require.NoError(t, s.router.Close())
			assert.Equal(t, 1, b.effects(msg), name)
			assert.Equal(t, 0, b.open(admin.Parked), name)
			b.db.Do(t, `DELETE FROM millrace_messages`)
		}
	})},
	{Name: "the audit table is emptied after Allow", Why: "who replays on purpose is heard by the message, not by the table", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := replayed(newMessage())
		require.NoError(t, b.storeIn(inbox.QueueConfig{}, msg).Allow(t.Context(), ada, "orders", msg))
		b.forgetAudit()
		s := b.refusing()
		rig.Eventually(b, "it is handled, or refused", func() bool { return b.effects(msg) == 1 && b.rows() == 0 || b.open(admin.Parked) == 1 })
		assert.Equal(t, 1, b.effects(msg))
		require.NoError(t, s.router.Close())
	})},
	{Name: "the first Put was rolled back", Why: "its consumer's row is gone with it, and the next Put inserts it again", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		queue := rig.Queue(t, b.store, inbox.QueueConfig{Consumer: consumer})
		for _, result := range []error{errBoom, nil} {
			require.ErrorIs(t, outbox.InTx(t.Context(), b.db.DB, func(ctx context.Context, _ *sqlx.Tx) error {
				return errors.Join(queue.Put(ctx, "orders", newMessage()), result)
			}), result)
		}
		assert.Equal(t, 1, b.count(`SELECT COUNT(*) FROM millrace_consumers`))
		assert.Len(t, rig.Take(t, rig.Queue(t, b.process(), inbox.QueueConfig{Consumer: consumer}), 10), 1)
	})},
	{Name: "Allow of one of two messages with a key", Why: "the other one is as little wanted as before", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := replayed(newMessage())
		require.NoError(t, b.storeIn(inbox.QueueConfig{}, msg).Allow(t.Context(), ada, "orders", another(msg)))
		s := b.refusing()
		rig.Eventually(b, "it is refused, or handled", func() bool { return b.open(admin.Parked) == 1 || b.effects(msg) > 0 })
		assert.Equal(t, 0, b.effects(msg))
		require.NoError(t, s.router.Close())
	})},
	{Name: "Allow of a message whose key counts per topic", Why: "it is the one that Put has stored", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := replayed(newMessage())
		queue := b.storeIn(inbox.QueueConfig{Key: inbox.ByUUID().WithinTopic()}, msg)
		require.NoError(t, queue.Allow(t.Context(), ada, "orders", msg))
		assert.Equal(t, 1, b.count(`SELECT COUNT(*) FROM millrace_messages WHERE allowed = 1`))
	})},
	{Name: "the reason of a refused replay is reworded", Why: "it is refused all the same: no replay brings it back, Allow and Retry do", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		for _, ends := range []string{"allow", "retry"} {
			s, msg := b.refusing(), replayed(newMessage())
			row := s.parks(msg)
			b.reword(reworded)
			b.db.Do(t, `UPDATE millrace_messages SET attempts = 1`) // as of one that had failed before
			queue := rig.Queue(t, b.process(), inbox.QueueConfig{Consumer: consumer})
			require.NoError(t, queue.Put(t.Context(), "orders", msg))
			assert.True(t, s.deliver(msg))
			assert.Equal(t, 0, b.effects(msg))
			assert.Empty(t, rig.Story(t, b.store, msg.UUID).Audit, "nobody has brought it back")
			require.Equal(t, 1, b.open(admin.Parked))
			if ends == "allow" {
				require.NoError(t, queue.Allow(t.Context(), ada, "orders", msg))
			} else {
				b.believedServed()
				require.NoError(t, admin.New(b.store).Retry(t.Context(), row.ID, ada, nil))
			}
			rig.Eventually(b, "it is handled", func() bool { return b.effects(msg) == 1 && b.rows() == 0 })
			require.NoError(t, s.router.Close())
		}
	})},
	{Name: "a reason that reads like a refusal", Why: "what failed is brought back by a replay, whatever its texts say", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		for word, rule := range everyRule {
			f := b.failing(word, pubsub.StoreOnFailure, rule)
			msg := newMessage()
			f.parks(msg)
			b.reword(refusal)
			f.mended.Store(true)
			f.handles(replayed(msg))
			f.ends()
		}
	})},
	{Name: "a reason that reads like a refusal, of a message that is parked for another one", Why: "Allow is about refused ones", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		s, before, msg := b.inboxed(storeFirst(b.store), effect), newMessage(), replayed(newMessage())
		assert.True(t, s.deliver(before))
		rig.Eventually(b, "the consumer is known", func() bool { return b.effects(before) == 1 && b.rows() == 0 })
		b.db.Do(t, `UPDATE millrace_consumers SET purge_line = created_at`)
		msg.Metadata.Set("ce_time", time.Now().Add(-30*24*time.Hour).Format(time.RFC3339))
		assert.True(t, s.deliver(msg))
		rig.Eventually(b, "it is parked as too old", func() bool { return b.open(admin.Parked) == 1 })
		b.reword(refusal)
		queue := rig.Queue(t, b.process(), inbox.QueueConfig{Consumer: consumer})
		require.NoError(t, queue.Allow(t.Context(), ada, "orders", msg))
		require.NoError(t, s.router.Close())
		assert.Equal(t, 1, b.open(admin.Parked))
		assert.Equal(t, 0, b.effects(msg))
	})},
	{Name: "a refused replay that is allowed, and moves to a new epoch", Why: "what an ada wants is about the message", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		s, msg := b.refusing(), replayed(newMessage())
		row := s.parks(msg)
		require.NoError(t, s.router.Close())
		b.believedServed()
		require.NoError(t, admin.New(b.store).Retry(t.Context(), row.ID, ada, nil))
		durable := quick(b.store)
		durable.Epoch = 1
		s = b.inboxed(durable, effect, refuse)
		rig.Eventually(b, "it is handled, or refused again", func() bool { return b.effects(msg) == 1 && b.rows() == 0 || b.open(admin.Parked) == 1 })
		assert.Equal(t, 1, b.effects(msg))
		require.NoError(t, s.router.Close())
	})},
	{Name: "connections that are lost", Why: "the first of them in a row is no attempt, whatever the texts of the errors say", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		pool := faults.Open(t, db)
		var loses atomic.Bool
		pool.Set(faults.Plan{Before: func(_ context.Context, call string) error {
			if call == faults.Rollback && loses.Swap(false) {
				return faults.ErrLost
			}
			return nil
		}})
		store := b.newStore(pool.DB)
		h := millrace.Inbox{Store: store, Consumer: consumer}.Middleware(silent(func(*message.Message) error { return errBoom }))
		queue := rig.Queue(t, store, inbox.QueueConfig{Consumer: consumer, MinBackoff: time.Millisecond, MaxBackoff: time.Millisecond})
		require.NoError(t, queue.Put(t.Context(), "orders", newMessage()))
		for i, round := range []struct {
			last     string // takes the place of the error before
			lost     bool
			attempts int // afterwards
		}{
			{"", true, 0},
			{reworded, true, 1},
			{"", false, 2},
			{"the connection to the database was lost, said the bank", true, 2},
			{"", true, 3},
		} {
			if round.last != "" {
				b.db.Do(t, `UPDATE millrace_messages SET last_error = ?`, []byte(round.last))
			}
			var taken []*inbox.Leased
			rig.Eventually(t, "it is due", func() bool { taken = rig.Take(t, queue, 1); return len(taken) == 1 })
			msg, err := taken[0].Message(t.Context())
			require.NoError(t, err)
			loses.Store(round.lost)
			require.ErrorIs(t, do(h, msg), errBoom)
			assert.False(t, loses.Load())
			require.NoError(t, taken[0].Fail(t.Context()))
			assert.Equal(t, round.attempts, b.count(`SELECT attempts FROM millrace_messages`), "round %d", i)
		}
	}},
	{Name: "a message that is tried again after it was refused", Why: "that it was refused once is over: when it fails, a replay brings it back", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		f := b.failing("billing", pubsub.StoreOnFailure, inbox.ReplayRefuse)
		msg := replayed(newMessage())
		row := f.parks(msg)
		rig.Eventually(b, "the queue has it", func() bool {
			return admin.New(b.store).Retry(t.Context(), row.ID, ada, nil) == nil
		})
		rig.Eventually(b, "it has failed", func() bool {
			return b.count(`SELECT COUNT(*) FROM millrace_messages WHERE status = ? AND attempts = 1`, admin.Parked) == 1
		})
		f.mended.Store(true)
		f.handles(msg)
		f.ends()
	})},
}

// refusing starts a service that refuses replayed messages, and stores every message first.
func (b *bed) refusing() *service {
	b.Helper()
	return b.inboxed(storeFirst(b.store), effect, refuse)
}
