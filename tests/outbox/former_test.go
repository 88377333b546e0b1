package outbox_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// A relay of an earlier release lives, or died and still holds a lease: the shards are replaced when that is over,
// and not before.
func TestShardsOfAnEarlierReleaseAreReplacedWhenItsRelaysAreGone(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		p := newPost(t, db)
		p.former(5)
		began, lease := time.Now(), 2*time.Second
		db.Do(t, fmt.Sprintf(`INSERT INTO millrace_outbox_relays (token, name, started_at, until) VALUES (1, 'dead', 0, %d)`,
			began.Add(lease).UnixMicro()))
		db.Do(t, `UPDATE millrace_outbox_shards SET owner = 1 WHERE shard = 2`)
		want, all := p.spread(32, 2)
		first, second := p.member("first"), p.member("second")
		rig.Eventually(p, "they wait", func() bool { return p.log.has("waits for relays of an earlier release to stop") })
		_, err := first.RelayBatch(t.Context())
		if time.Since(began) < lease {
			require.ErrorContains(t, err, "this one begins when the last of them has stopped")
		}
		p.broker.awaitAll(t, all)
		assert.GreaterOrEqual(t, time.Since(began), lease)
		p.shared(first, second)
		p.inOrder(want)
		p.onceEach()
	})
}

// A relay of an earlier release read the former shards just before they were replaced, and claims one just after.
func TestAFormerShardCannotBeTakenAfterwards(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		p := newPost(t, db)
		p.former(5)
		db.Do(t, `UPDATE millrace_outbox_shards SET owner = 1 WHERE shard = 2`) // by one that died
		owners := func() (owners []int64) {
			require.NoError(t, db.SelectContext(t.Context(), &owners, `SELECT owner FROM millrace_outbox_shards WHERE generation = 3 ORDER BY shard`))
			return owners
		}
		m := p.member("one", leased(8*time.Second))
		p.shared(m)
		token := int64(db.Count(t, `SELECT token FROM millrace_outbox_relays`))
		require.Equal(t, []int64{token, token, token, token, token}, owners())

		require.NoError(t, m.stop())
		assert.Equal(t, token, int64(db.Count(t, `SELECT token FROM millrace_outbox_relays`)), "it lives for who reads that now")
		assert.Equal(t, []int64{token, token, token, token, token}, owners(), "it does not sign off")
		next := p.member("next", leased(8*time.Second))
		p.shared(next)
		require.NoError(t, next.stop())
		assert.Zero(t, db.Count(t, `SELECT COUNT(*) FROM millrace_outbox_relays`))
	})
}

// A relay of an earlier release claims a shard between the look and the transaction that is to replace them.
func TestShardsAreNotReplacedWhenOneIsTakenMeanwhile(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		p := newPost(t, db)
		p.former(5)
		m, lease := p.prepare("one"), 2*time.Second
		var began time.Time
		m.db.Set(on(func(context.Context) error {
			if began.IsZero() {
				began = time.Now()
				db.Do(t, fmt.Sprintf(`INSERT INTO millrace_outbox_relays (token, name, started_at, until) VALUES (1, 'old', 0, %d)`, //nolint:contextcheck // another relay's
					began.Add(lease).UnixMicro()))
				db.Do(t, `UPDATE millrace_outbox_shards SET owner = 1 WHERE shard = 2`) //nolint:contextcheck // the same
			}
			return nil
		}, "INSERT INTO millrace_outbox_relays"))
		_, all := p.spread(32, 1)
		m.running = start(t, m.Relay)
		rig.Eventually(p, "it waits", func() bool { return p.log.has("waits for relays of an earlier release to stop") })
		assert.Equal(t, 5, db.Count(t, `SELECT shards FROM millrace_outbox_layout`))
		p.broker.awaitAll(t, all)
		assert.GreaterOrEqual(t, time.Since(began), lease)
		p.shared(m)
		p.onceEach()
	})
}
