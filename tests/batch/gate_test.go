package batch_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
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

// TestGate runs every behaviour of batches in the order of versions on every database.
func TestGate(t *testing.T) {
	t.Parallel()
	testdb.Conformance(t, slices.Concat(gateBodies, heldBodies, latestBodies))
}

func newGateBed(t *testing.T, db *testdb.DB) *bed {
	t.Helper()
	b := newBed(t, db)
	db.Do(t, `CREATE TABLE state (name VARCHAR(20) PRIMARY KEY, version INTEGER NOT NULL)`)
	return b
}

// versions are messages of an aggregate, from one version to another.
func (b *bed) versions(aggregate string, from, to int64) (msgs []*message.Message) {
	b.Helper()
	if b.db.Count(b, `SELECT COUNT(*) FROM state WHERE name = ?`, aggregate) == 0 {
		b.db.Do(b, `INSERT INTO state (name, version) VALUES (?, 0)`, aggregate)
	}
	for v := from; v <= to; v++ {
		msg := newMessages(1)[0]
		outbox.Stamp(msg, aggregate, v)
		msgs = append(msgs, msg)
	}
	return msgs
}

func (b *bed) version(aggregate string) int {
	b.Helper()
	applied := b.db.Count(b, `SELECT version FROM state WHERE name = ?`, aggregate)
	known, err := b.store.Version(b.Context(), inbox.Aggregate{Consumer: "billing", ID: aggregate})
	if !errors.Is(err, inbox.ErrNotFound) {
		require.NoError(b, err)
	}
	assert.EqualValues(b, applied, known, "the gate has another version of %s", aggregate)
	return applied
}

// follow applies versions, each only after the one before.
func follow(ctx context.Context, msgs []*message.Message) error {
	tx, err := inbox.Tx(ctx)
	if err != nil {
		return err
	}
	for _, m := range msgs {
		result, err := tx.ExecContext(ctx, tx.Rebind(`UPDATE state SET version = version + 1 WHERE name = ? AND version + 1 = `+
			m.Metadata.Get(inbox.VersionField)), m.Metadata.Get(inbox.AggregateField))
		if err != nil {
			return err
		}
		if n, err := result.RowsAffected(); err != nil || n != 1 {
			return fmt.Errorf("version %s of %s does not follow: %w", m.Metadata.Get(inbox.VersionField), m.Metadata.Get(inbox.AggregateField), err)
		}
	}
	return apply(ctx, msgs)
}

func shuffled(msgs []*message.Message) []*message.Message {
	rand.Shuffle(len(msgs), func(i, j int) { msgs[i], msgs[j] = msgs[j], msgs[i] })
	return msgs
}

func ordered(b *millrace.Batch) {
	b.Gate = &millrace.VersionGate{OnGap: inbox.GapFail, GapFor: time.Hour}
}

// soon is ordered for messages that may not fill a batch, and that are delivered until they are handled.
func soon(b *millrace.Batch) {
	ordered(b)
	b.Linger, b.Inbox.TwinWait = 20*time.Millisecond, time.Second
}

// untilAll delivers msgs until each is acked.
func (b *bed) untilAll(h message.HandlerFunc, msgs []*message.Message) {
	b.Helper()
	for end := time.Now().Add(rig.Patience); len(msgs) > 0; {
		require.True(b, time.Now().Before(end), "%d messages are not handled", len(msgs))
		var again []*message.Message
		for i, err := range b.errs(start(h, copies(msgs))) {
			if err != nil {
				again = append(again, msgs[i])
			}
		}
		msgs = again
	}
}

var gateBodies = []testdb.Body{
	{Name: "versions that follow one another", Why: "they go through in one batch, in order", Run: testdb.With(newGateBed, func(t *testing.T, b *bed) {
		var seen sizes
		for from := int64(1); from < 20; from += 5 {
			msgs := shuffled(append(b.versions("ada", from, from+4), b.versions("bob", from, from+4)...))
			b.must(b.batch(10, seen.of(follow), ordered), msgs)
		}
		assert.Equal(t, []int{10, 10, 10, 10}, seen.seen())
		assert.Equal(t, 20, b.version("ada"))
		assert.Equal(t, 20, b.version("bob"))
		assert.Equal(t, 40, b.effects())
	})},
	{Name: "a beginning that is seen, in a batch that fails", Why: "no later version becomes the beginning meanwhile", Run: testdb.With(newGateBed,
		func(t *testing.T, b *bed) {
			var seen sizes
			var failed atomic.Bool
			firstSeen := func(b *millrace.Batch) { soon(b); b.Gate.First = inbox.FirstSeen }
			h := b.batch(3, seen.of(func(ctx context.Context, msgs []*message.Message) error {
				if len(msgs) > 1 || msgs[0].Metadata.Get(inbox.VersionField) == "4" && !failed.Swap(true) {
					return errBoom
				}
				return apply(ctx, msgs)
			}), firstSeen)
			b.untilAll(h, b.versions("ada", 4, 6))
			assert.Equal(t, 3, b.effects(), "none was parked")
			b.must(b.batch(3, seen.of(apply), firstSeen, func(b *millrace.Batch) {
				b.Linger, b.Inbox.TwinWait = rig.Patience, rig.Patience
			}), b.versions("bob", 7, 9))
			all := seen.seen()
			assert.Equal(t, 3, all[len(all)-1], "in one batch")
		})},
	{Name: "a gap", Why: "the message behind it goes back, and the others are handled", Run: testdb.With(newGateBed, func(t *testing.T, b *bed) {
		msgs := append(b.versions("ada", 1, 2), b.versions("ada", 4, 4)...)
		errs := b.errs(start(b.batch(3, follow, ordered), msgs))
		require.NoError(t, errs[0])
		require.NoError(t, errs[1])
		var gap *inbox.GapError
		require.ErrorAs(t, errs[2], &gap)
		assert.Equal(t, 2, b.version("ada"))
		b.untilAll(b.batch(2, follow, soon), append(copies(msgs[2:]), b.versions("ada", 3, 3)...))
		assert.Equal(t, 4, b.version("ada"))
	})},
	{Name: "versions that another process applied", Why: "the aggregate is locked, and the gate decides about each", Run: testdb.With(newGateBed, func(t *testing.T, b *bed) {
		b.must(b.batch(2, follow, ordered), b.versions("ada", 1, 2))
		b.must(b.batch(3, follow, ordered, on(b.twin())), b.versions("ada", 3, 5))
		errs := b.errs(start(b.batch(3, apply, ordered), b.versions("ada", 3, 5))) // other messages with the same versions
		for _, err := range errs {
			require.NoError(t, err)
		}
		assert.Equal(t, 5, b.effects(), "the handler ran for a stale version")
		assert.Equal(t, 1, b.events.Count("parked"), "version 5 collides")
		assert.Equal(t, 5, b.version("ada"))
		b.untilAll(b.batch(3, follow, soon), b.versions("ada", 6, 8))
		assert.Equal(t, 8, b.version("ada"))
	})},
	{Name: "a version that fails", Why: "those behind it wait, and other aggregates do not", Run: testdb.With(newGateBed, func(t *testing.T, b *bed) {
		msgs := append(b.versions("ada", 1, 5), b.versions("bob", 1, 5)...)
		bad := msgs[2].UUID
		errs := b.errs(start(b.batch(10, func(ctx context.Context, msgs []*message.Message) error {
			for _, m := range msgs {
				if m.UUID == bad {
					return millrace.Failed(m, errBoom)
				}
			}
			return follow(ctx, msgs)
		}, ordered), msgs))
		for i, err := range errs {
			if i < 2 || i > 4 {
				require.NoError(t, err, i)
			} else {
				require.Error(t, err, i)
			}
		}
		assert.Equal(t, 2, b.version("ada"))
		assert.Equal(t, 5, b.version("bob"))
		b.untilAll(b.batch(3, follow, soon), copies(msgs[2:5]))
		assert.Equal(t, 5, b.version("ada"))
	})},
	{Name: "versions of a handler that commits and fails", Why: "they are taken back with the claims", Run: testdb.With(newGateBed, func(t *testing.T, b *bed) {
		if b.db.Dialect == "sqlite" {
			return // which refuses the commit
		}
		msgs := b.versions("ada", 1, 4)
		for _, err := range b.errs(start(b.batch(4, func(ctx context.Context, msgs []*message.Message) error {
			tx, _ := inbox.Tx(ctx)
			_ = tx.Commit()
			return errBoom
		}, ordered), msgs)) {
			require.ErrorIs(t, err, inbox.ErrTxEndedByHandler)
		}
		assert.Equal(t, 0, b.version("ada"))
		b.untilAll(b.batch(4, follow, soon), copies(msgs))
		assert.Equal(t, 4, b.version("ada"))
	})},
	{Name: "a version alone whose handler commits and fails", Why: "it is taken back, and no other", Run: testdb.With(newGateBed, func(t *testing.T, b *bed) {
		msgs, failed := b.versions("ada", 1, 4), false
		h := b.batch(1, func(ctx context.Context, batch []*message.Message) error {
			if batch[0].UUID != msgs[2].UUID || failed {
				return follow(ctx, batch)
			}
			failed = true
			tx, _ := inbox.Tx(ctx)
			_ = tx.Commit()
			return errBoom
		}, ordered)
		for _, msg := range copies(msgs[:2]) {
			b.must(h, []*message.Message{msg})
		}
		require.Error(t, b.errs(start(h, copies(msgs[2:3])))[0])
		assert.Equal(t, 2, b.version("ada"))
		for _, msg := range copies(msgs[2:]) {
			b.must(h, []*message.Message{msg})
		}
		b.once(msgs)
	})},
	{Name: "successors of versions that are taken back", Why: "they wait for them", Run: testdb.With(newGateBed, func(t *testing.T, b *bed) {
		if b.db.Dialect == "sqlite" {
			return // which refuses the commit
		}
		msgs := b.versions("ada", 1, 8)
		var later []<-chan error
		var h message.HandlerFunc
		var once sync.Once
		h = b.batch(4, func(ctx context.Context, batch []*message.Message) (err error) {
			once.Do(func() {
				later = start(h, copies(msgs[4:]))
				rig.Eventually(t, "they gather", func() bool { return b.events.Count("received") == len(msgs) })
				tx, _ := inbox.Tx(ctx)
				_ = tx.Commit()
				err = errBoom
			})
			if err != nil {
				return err
			}
			return apply(ctx, batch)
		}, ordered)
		for _, err := range b.errs(start(h, copies(msgs[:4]))) {
			require.ErrorIs(t, err, inbox.ErrTxEndedByHandler)
		}
		for _, err := range b.errs(later) {
			assert.Error(t, err, "it was applied before its predecessors")
		}
		b.untilAll(b.batch(4, apply, soon), copies(msgs))
		b.once(msgs)
	})},
	{Name: "versions that were seen before they are taken back", Why: "they are not stale", Run: testdb.With(newGateBed, func(t *testing.T, b *bed) {
		if b.db.Dialect == "sqlite" {
			return // which refuses the commit
		}
		var asked atomic.Int32 // how often a message that waits for its predecessor has asked
		pool := faults.Open(t, b.db)
		msgs := b.versions("ada", 1, 8)
		store := b.newStore(pool.DB)
		change := func(batch *millrace.Batch) {
			ordered(batch)
			batch.Inbox.Store = store
			batch.Inbox.Redelivered = func(msg *message.Message) bool { return msg.UUID == msgs[7].UUID }
		}
		var h message.HandlerFunc
		var last <-chan error
		h = b.batch(2, func(ctx context.Context, batch []*message.Message) error {
			if batch[0].UUID != msgs[2].UUID {
				return apply(ctx, batch)
			}
			tx, _ := inbox.Tx(ctx)
			_ = tx.Commit()
			pool.Set(faults.Plan{Before: faults.At("FROM millrace_versions", func() error { asked.Add(1); return nil })})
			last = rig.Handle(h, msgs[7].Copy())
			rig.Eventually(t, "version 4 was seen", func() bool { // with an answer, it asks again or gives up
				n := asked.Load()
				return n > 1 || n == 1 && len(last) == 1
			})
			return errBoom
		}, change)
		b.must(h, msgs[:2])
		for _, err := range b.errs(start(h, copies(msgs[2:4]))) {
			require.ErrorIs(t, err, inbox.ErrTxEndedByHandler)
		}
		require.Error(t, rig.Within(t, last, "the gap is not told"))
		b.untilAll(b.batch(2, apply, soon, on(store)), copies(msgs[2:]))
		b.once(msgs)
	})},
	{Name: "random order in two processes", Why: "versions are applied gapless and once, whoever gets them", Run: testdb.With(newGateBed, func(t *testing.T, b *bed) {
		const aggregates, each = 5, 12
		var msgs []*message.Message
		for i := range aggregates {
			msgs = append(msgs, b.versions(fmt.Sprint("a", i), 1, each)...)
		}
		shuffled(msgs)
		first, second := b.batch(20, follow, soon), b.batch(20, follow, soon, on(b.twin()))
		b.untilAll(func(msg *message.Message) ([]*message.Message, error) {
			if msg.UUID[0]%2 == 0 {
				return first(msg)
			}
			return second(msg)
		}, msgs)
		for i := range aggregates {
			assert.Equal(t, each, b.version(fmt.Sprint("a", i)))
		}
		assert.Equal(t, len(msgs), b.effects())
	})},
}
