package gate_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

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

var ada = admin.Operator{Name: "ada", Reason: "it never came"}

// The row of an aggregate whose first message is with a handler cannot be seen, nor locked by what
// does not make it.
func TestSetVersionWhileTheFirstMessageIsHandled(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		a := inbox.Aggregate{Consumer: consumer, ID: "a"}
		must(t, b.gated(b.store, millrace.VersionGate{}, handler), change("b", 1)) // the consumer is known
		operator := b.process()
		var set <-chan error
		h := b.gated(b.store, millrace.VersionGate{First: inbox.FirstSeen}, func(msg *message.Message) ([]*message.Message, error) {
			ended := rig.Go(func() error { return admin.New(operator).SetVersion(t.Context(), a, 3, ada) })
			set = ended
			b.db.UntilWaiting(t, 1, "millrace_versions")
			return handler(msg)
		})
		must(t, h, change("a", 7))
		err := rig.Within(t, set, "SetVersion returns")
		assert.ErrorContains(t, err, "it is at version 7")
		assert.ErrorIs(t, err, inbox.ErrWrongState)
		assert.Equal(t, int64(7), b.version(a.ID))
		require.NoError(t, admin.New(operator).SetVersion(t.Context(), a, 7, ada), "again is no error")
		require.NoError(t, admin.New(operator).SetVersion(t.Context(), a, 9, ada))
		must(t, b.gated(b.process(), millrace.VersionGate{}, handler), change("a", 10))
		assert.Equal(t, []int64{7, 10}, b.applied("a"))
	}))
}

// What an operator saw may have changed when the gap is skipped.
func TestSkipGapWhileAMissingMessageIsHandled(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		a := inbox.Aggregate{Consumer: consumer, ID: "a"}
		b.queued(b.store)
		must(t, b.gated(b.store, millrace.VersionGate{}, handler), change("a", 1), change("a", 5))
		operator := b.process()
		skip := func(from, to int64) error { return admin.New(operator).SkipGap(t.Context(), a, from, to, ada) }
		var ended <-chan error
		must(t, b.gated(b.store, millrace.VersionGate{}, func(msg *message.Message) ([]*message.Message, error) {
			ended = rig.Go(func() error { return skip(2, 4) })
			b.db.UntilWaiting(t, 1, "millrace_versions")
			return handler(msg)
		}), change("a", 2))
		require.ErrorIs(t, rig.Within(t, ended, "SkipGap returns"), inbox.ErrWrongState)
		assert.Equal(t, int64(2), b.version(a.ID))

		must(t, b.gated(b.store, millrace.VersionGate{}, handler), change("a", 4)) // is held: only 3 is missing now
		require.ErrorIs(t, skip(3, 4), inbox.ErrWrongState)
		assert.Equal(t, 2, b.open(admin.Held))
		require.NoError(t, skip(3, 3))
		assert.Equal(t, int64(3), b.version(a.ID))
		assert.Equal(t, 1, b.open(admin.Held), "4 is released")
	}))
}

// The version of a discarded message is not applied: who discards it is told what waits for it.
func TestDiscardingWhatOthersWaitFor(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		events := &rig.Events{}
		store := b.newStore(b.db.DB, inbox.Config{Logger: events})
		b.queued(store)
		boom := errors.New("boom")
		var fails message.HandlerFunc = func(*message.Message) ([]*message.Message, error) { return nil, inbox.Terminal(boom) }
		said := func() (n int) {
			for _, text := range events.Logs() {
				if strings.HasPrefix(text, "inbox: messages stay held behind one that was discarded: call Admin.SetVersion with 1") {
					n++
				}
			}
			return n
		}
		queue := rig.Queue(t, store, inbox.QueueConfig{Consumer: consumer})
		park := func(msg *message.Message) int64 {
			copied, fail := queue.Straight("changes", msg)
			rig.MustFail(t, b.gated(store, millrace.VersionGate{}, fails), copied, boom)
			stored, err := fail(t.Context())
			require.NoError(t, err)
			require.True(t, stored)
			return rig.Find(t, store, admin.Filter{Status: admin.FailedTerminal})[0].ID
		}
		require.NoError(t, admin.New(store).Discard(t.Context(), park(change("a", 1)), ada))
		assert.Zero(t, said(), "nobody waits")
		for n, discard := range []func(id int64) error{
			func(id int64) error { return admin.New(store).Discard(t.Context(), id, ada) },
			func(int64) error {
				_, err := admin.New(store).DiscardAll(t.Context(), admin.Filter{}, ada, admin.Pace{})
				return err
			},
		} {
			aggregate := fmt.Sprint("b", n)
			id := park(change(aggregate, 1))
			must(t, b.gated(store, millrace.VersionGate{}, handler), change(aggregate, 2))
			require.NoError(t, discard(id))
			assert.Equal(t, n+1, said())
		}
		const many = 5
		for range many {
			park(change("c", 1))
		}
		must(t, b.gated(store, millrace.VersionGate{}, handler), change("c", 2))
		pool := faults.Open(t, b.db)
		reads := countReads(pool)
		_, err := admin.New(b.newStore(pool.DB, inbox.Config{Logger: events})).DiscardAll(t.Context(), admin.Filter{}, ada, admin.Pace{})
		require.NoError(t, err)
		assert.Equal(t, 2+many, said())
		assert.Equal(t, int64(1), reads.Load(), "an aggregate is looked at once")

		// The third was changed meanwhile, so they are discarded one by one; the call ends after the first.
		park(change("d", 1))
		park(change("e", 1))
		park(change("f", 1))
		must(t, b.gated(store, millrace.VersionGate{}, handler), change("d", 2), change("e", 2), change("f", 2))
		third := rig.Find(t, store, admin.Filter{Status: admin.FailedTerminal})[2].ID
		ctx, end := context.WithCancel(t.Context())
		begun := 0
		pool.Set(faults.Plan{Before: func(_ context.Context, call string) error {
			if call != faults.Begin {
				return nil
			}
			switch begun++; begun {
			case 1:
				b.db.Do(t, `UPDATE millrace_messages SET status = ? WHERE id = ?`, admin.Parked, third) //nolint:contextcheck // it takes none
			case 2:
				end()
			}
			return nil
		}})
		n, err := admin.New(b.newStore(pool.DB, inbox.Config{Logger: events})).DiscardAll(ctx, admin.Filter{}, ada, admin.Pace{})
		require.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, 1, n)
		assert.Equal(t, 2+many+1, said(), "of the one that was discarded")
	}))
}

var forgetBodies = []testdb.Body{
	{Name: "a rebuild of a consumer with many aggregates", Why: "Forget goes through them, and through what they hold, a page at a time", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.queued(b.store)
		must(t, b.gated(b.store, millrace.VersionGate{}, handler), change("a", 1), change("a", 3))
		for table, columns := range map[string][2]string{
			"versions": {"consumer, aggregate, version, first_version, token, message_id, payload_hash", "m.consumer, %s, 1, 1, 1, 'm', 1"},
			"messages": {
				"consumer, message_id, status, topic, uuid, metadata, payload, payload_hash, received_at, due_at, aggregate, version",
				"m.consumer, %[1]s, 7, 't', %[1]s, m.metadata, 'p', 1, 1, 1, %[1]s, 3",
			},
		} {
			b.db.Do(t, fmt.Sprintf(`
				INSERT INTO millrace_%s (%s)
				WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 980)
				SELECT %s FROM n CROSS JOIN (SELECT consumer, metadata FROM millrace_messages WHERE version = 3 LIMIT 1) m`,
				table, columns[0], fmt.Sprintf(columns[1], b.db.Bytes("i"))))
		}
		require.Equal(t, 981, b.open(admin.Held))
		pool := faults.Open(t, b.db)
		most := 0
		pool.Set(faults.Plan{Before: func(_ context.Context, call string) error {
			if strings.Contains(call, "millrace_versions") || strings.Contains(call, "UPDATE millrace_messages") {
				most = max(most, strings.Count(call, ",")) // as many as it names
			}
			return nil
		}})
		require.NoError(t, admin.New(rig.NewStore(t, pool.DB, inbox.Config{})).Forget(t.Context(), consumer, 0, admin.Operator{Name: "ada", Reason: "rebuild"}))
		assert.Zero(t, b.open(admin.Held))
		assert.Equal(t, 981, b.open(admin.Received))
		assert.Zero(t, b.db.Count(t, `SELECT COUNT(*) FROM millrace_versions`))
		assert.InDelta(t, 500, most, 5, "no statement changes more")
	})},
}
