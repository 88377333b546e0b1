package tests_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/inbox/lease"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// neglected are the findings about claims that nobody deletes.
func (b *bed) neglected(store *inbox.Store) []inbox.Finding {
	b.Helper()
	found := findings(b, store)
	var about []inbox.Finding
	for _, f := range found {
		if f.Subject == `consumer "billing", epoch 0` {
			about = append(about, f)
		}
	}
	return about
}

// forget has the consumer be made, and its claims be purged, so long ago.
func (b *bed) forget(made, purged time.Duration) {
	b.Helper()
	b.exec(`UPDATE millrace_consumers SET created_at = created_at - ?`, made.Microseconds())
	b.exec(`UPDATE millrace_consumers SET purged_at = purged_at - ? WHERE purged_at > 0`, purged.Microseconds())
}

func TestCheckFindsThatNoJanitorRuns(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		must(t, b.inbox(effect), newMessage("x"))
		assert.Empty(t, b.neglected(b.process()), "the consumer is new")

		b.forget(2*day, 0)
		found := b.neglected(b.process())
		require.Len(t, found, 1)
		assert.Equal(t, inbox.Warning, found[0].Severity)
		assert.Contains(t, found[0].Problem, "ever")
		assert.Contains(t, found[0].Remedy, "millrace purge")

		b.purge(0)
		assert.Empty(t, b.neglected(b.process()))
		b.forget(0, 2*day)
		found = b.neglected(b.process())
		require.Len(t, found, 1)
		assert.Contains(t, found[0].Problem, "48h0m0s")

		router := rig.NewRouter(t)
		require.NoError(t, b.store.Plugin()(router))
		assert.Empty(t, b.neglected(b.store), "this process has a janitor")
		require.NoError(t, b.store.Close(t.Context()))

		b.exec(`DELETE FROM millrace_claims`)
		assert.Empty(t, b.neglected(b.process()), "there is nothing to delete")
	}))
}

// TestAJanitorThatHasNothingToDoLeavesATrace: it does not walk before the first claim
// expires, and is there all the same.
func TestAJanitorThatHasNothingToDoLeavesATrace(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		must(t, b.inbox(effect), newMessage("x"))
		purged := func() time.Time {
			known, err := admin.New(b.store).Consumers(t.Context())
			require.NoError(t, err)
			require.Len(t, known, 1)
			return known[0].PurgedAt
		}
		require.True(t, purged().IsZero())
		store := b.newStore(b.db.DB, inbox.Config{PurgeInterval: 10 * time.Millisecond})
		stopped := rig.Go(func() error { return store.Run(t.Context()) })
		await := func(after time.Time) time.Time {
			require.Eventually(t, func() bool { return purged().After(after) }, rig.Patience, 5*time.Millisecond)
			return purged()
		}
		first := await(time.Time{})
		b.forget(0, 2*day) // so long that a trace is due, though no walk is
		await(first.Add(-time.Hour))
		require.NoError(t, store.Close(t.Context()))
		require.NoError(t, <-stopped)
	}))
}

func TestConsumersAreKnown(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		consume := func(config inbox.ConsumerConfig) {
			h, err := b.store.Handler(config, effectless)
			require.NoError(t, err)
			msg := newMessage("x")
			msg.Metadata.Set("name", "Paid")
			_, err = h(msg)
			require.NoError(t, err)
		}
		consume(inbox.ConsumerConfig{Name: "mail", Key: inbox.ByPayload(), Options: inbox.Options{Retention: inbox.Forever}})
		consume(inbox.ConsumerConfig{Name: "billing", Key: inbox.ByUUID().WithinType(), Options: inbox.Options{Epoch: 2, Window: time.Hour}})
		_, err := b.store.Leases().Store().Acquire(t.Context(), lease.Key{Consumer: "mailer", ID: "x"}, 1, time.Hour)
		require.NoError(t, err)
		known, err := admin.New(b.process()).Consumers(t.Context())
		require.NoError(t, err)
		require.Len(t, known, 2)
		assert.WithinDuration(t, time.Now(), known[0].CreatedAt, time.Minute)
		known[0].CreatedAt, known[1].CreatedAt = time.Time{}, time.Time{}
		assert.Equal(t, []admin.KnownConsumer{
			{Name: "billing", Epoch: 2, Key: "uuid/type", Retention: 7 * day, Window: time.Hour},
			{Name: "mail", Key: "payload", Retention: inbox.Forever},
		}, known)

		b.exec(`UPDATE millrace_claims SET processed_at = 1`)
		expired, err := admin.New(b.store).Expired(t.Context(), 10)
		require.NoError(t, err)
		assert.Equal(t, []admin.Expired{{Consumer: "billing", Epoch: 2, Claims: admin.Count{N: 1}}}, expired)
		consume(inbox.ConsumerConfig{Name: "billing", Key: inbox.ByUUID().WithinType(), Options: inbox.Options{Epoch: 2, Window: time.Hour}})
		expired, err = admin.New(b.store).Expired(t.Context(), 1)
		require.NoError(t, err)
		require.Len(t, expired, 1)
		assert.True(t, expired[0].Claims.AtLeast)
		b.purge(1)
		known, err = admin.New(b.store).Consumers(t.Context())
		require.NoError(t, err)
		assert.Equal(t, time.UnixMicro(1).UTC(), known[0].PurgeLine)
		assert.True(t, known[1].PurgeLine.IsZero())
		_, err = admin.New(b.store).Expired(t.Context(), 0)
		require.ErrorContains(t, err, "too few")
	}))
}

// A purge ends, however many of the messages that a relay has kept expire meanwhile.
func TestAPurgeDeletesWhatHadExpiredWhenItBegan(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		pool, stored := faults.Open(t, b.db), 0
		store := b.newStore(pool.DB, inbox.Config{})
		insert := `INSERT INTO millrace_outbox (topic, uuid, key_hash, created_at, due_at, status)
			SELECT '1', '1', 1, 1, ?, 4 FROM ` + b.db.Numbers(1000)
		pool.Set(faults.Plan{Before: func(_ context.Context, call string) error {
			if call == faults.Begin && stored < 20_000 {
				stored += 1000
				b.exec(insert, time.Now().UnixMicro()) //nolint:contextcheck // what a relay does meanwhile
			}
			return nil
		}})
		rig.Purge(t, store)
		assert.Positive(t, stored)
		assert.Equal(t, stored, b.count(`SELECT COUNT(*) FROM millrace_outbox`))
	}))
}
