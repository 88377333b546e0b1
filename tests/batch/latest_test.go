package batch_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func latest(b *millrace.Batch) { b.Gate = &millrace.VersionGate{OnGap: inbox.GapLatest} }

// replace applies versions, each if it is newer and the only one of its aggregate.
func replace(ctx context.Context, msgs []*message.Message) error {
	seen := map[string]bool{}
	for _, m := range msgs {
		aggregate := m.Metadata.Get(inbox.AggregateField)
		if seen[aggregate] {
			return fmt.Errorf("a batch has two messages of %s", aggregate)
		}
		seen[aggregate] = true
		version := m.Metadata.Get(inbox.VersionField)
		if err := rig.Exec(ctx, `UPDATE state SET version = `+version+` WHERE name = ? AND version < `+version, aggregate); err != nil {
			return err
		}
	}
	return apply(ctx, msgs)
}

var latestBodies = []testdb.Body{
	{Name: "only the newest of each aggregate", Why: "the others are superseded", Run: testdb.With(newGateBed, func(t *testing.T, b *bed) {
		var seen sizes
		msgs := shuffled(append(b.versions("ada", 1, 5), b.versions("bob", 3, 4)...))
		b.must(b.batch(7, seen.of(replace), latest), msgs)
		assert.Equal(t, []int{2}, seen.seen())
		assert.Equal(t, map[string]int{"received": 7, "completed": 2, "stale": 5}, b.events.Counts())
		assert.Equal(t, 5, b.version("ada"))
		assert.Equal(t, 4, b.version("bob"))
		assert.Equal(t, 2, b.db.Count(t, `SELECT COUNT(*) FROM millrace_claims`), "what no handler has seen is not claimed")
		b.must(b.batch(5, replace, latest), copies(msgs)) // those that were handled do not gather
		assert.Equal(t, 2, b.events.Count("duplicate"))
		assert.Equal(t, 10, b.events.Count("stale"))

		b.must(b.batch(3, seen.of(replace), latest, on(b.twin())), b.versions("ada", 7, 9))
		late := b.versions("ada", 6, 9)
		b.must(b.batch(4, seen.of(replace), latest), late)
		assert.Equal(t, []int{2, 1}, seen.seen(), "the handler got what another process had superseded")
		assert.Equal(t, 1, b.events.Count("parked"), "version 9 collides")
		assert.Equal(t, inbox.ReasonCollision, b.events.Last("parked").Reason)
		assert.Equal(t, 9, b.version("ada"))
		b.must(b.batch(3, seen.of(replace), latest), b.versions("ada", 10, 12))
		assert.Equal(t, 12, b.version("ada"))
		assert.Equal(t, 1, b.events.Count("gap"), "version 6 was not there when 9 was handled")
		assert.Equal(t, 4, b.effects())
	})},
	{Name: "the newest fails", Why: "the one before it is handled, and the newest comes again", Run: testdb.With(newGateBed, func(t *testing.T, b *bed) {
		msgs := append(b.versions("ada", 1, 5), b.versions("bob", 1, 3)...)
		bad := msgs[4].UUID
		errs := b.errs(start(b.batch(8, func(ctx context.Context, msgs []*message.Message) error {
			for _, m := range msgs {
				if m.UUID == bad {
					return millrace.Failed(m, errBoom)
				}
			}
			return replace(ctx, msgs)
		}, latest), msgs))
		for i, err := range errs {
			assert.Equal(t, i == 4, err != nil, "message %d: %v", i, err)
		}
		assert.Equal(t, 4, b.version("ada"))
		assert.Equal(t, 3, b.version("bob"))
		b.must(b.batch(1, replace, latest), copies(msgs[4:5]))
		assert.Equal(t, 5, b.version("ada"))
	})},
	{Name: "the newest of a handler that commits and fails", Why: "what it superseded comes again with it", Run: testdb.With(newGateBed, func(t *testing.T, b *bed) {
		if b.db.Dialect == "sqlite" {
			return // which refuses the commit
		}
		msgs := b.versions("ada", 1, 4)
		for i, err := range b.errs(start(b.batch(4, func(ctx context.Context, _ []*message.Message) error {
			tx, _ := inbox.Tx(ctx)
			_ = tx.Commit()
			return errBoom
		}, latest), msgs)) {
			require.ErrorIs(t, err, errBoom)
			assert.Equal(t, i == 3, errors.Is(err, inbox.ErrTxEndedByHandler))
		}
		assert.Equal(t, 0, b.db.Count(t, `SELECT COUNT(*) FROM millrace_claims WHERE result <> 0`))
		b.must(b.batch(1, replace, latest), copies(msgs[:1])) // the others may never come
		assert.Equal(t, 1, b.version("ada"))
		b.must(b.batch(1, replace, latest), copies(msgs[1:]))
		assert.Equal(t, 4, b.version("ada"))
	})},
	{Name: "other messages with the greatest version, with latest only", Why: "they collide with the one that has it", Run: testdb.With(newGateBed, collideAtTheEnd(latest))},
	{Name: "other messages with the greatest version", Why: "they collide with the one that has it", Run: testdb.With(newGateBed, func(t *testing.T, b *bed) {
		collideAtTheEnd(func(batch *millrace.Batch) {
			b.holding(b.store)(batch)
			batch.Gate.First = inbox.FirstSeen
		})(t, b)
	})},
	{Name: "the newest of what is stored", Why: "the rows of the others are closed with its own", Run: testdb.With(newGateBed, func(t *testing.T, b *bed) {
		q := b.newQueue(6, latest)
		h := handler(replace)
		q.handler.Store(&h)
		q.stores(shuffled(append(b.versions("ada", 1, 5), b.versions("bob", 1, 1)...)))
		assert.Equal(t, []int{2}, q.seen())
		assert.Equal(t, 5, b.version("ada"))
		rig.Eventually(t, "the others are stale", func() bool { return b.events.Count("stale") == 4 }) // told after the commit
		assert.Equal(t, 6, b.db.Count(t, `SELECT COUNT(*) FROM millrace_claims WHERE result <> 0`))
	})},
}

// collideAtTheEnd has a batch bring the greatest version there is to an aggregate that has it.
func collideAtTheEnd(gate func(*millrace.Batch)) func(*testing.T, *bed) {
	return func(t *testing.T, b *bed) {
		msgs := newMessages(3)
		for _, m := range msgs {
			outbox.Stamp(m, "ada", math.MaxInt64)
		}
		b.must(b.batch(1, apply, gate), msgs[:1])
		b.must(b.batch(2, apply, gate), msgs[1:])
		assert.Equal(t, 1, b.effects())
		assert.Equal(t, 2, b.events.Count("parked"))
		assert.Equal(t, inbox.ReasonCollision, b.events.Last("parked").Reason)
	}
}
