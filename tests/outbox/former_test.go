package outbox_test

import (
	"context"
	"sync"
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
		p.hasFormer()
		want, all := p.spread(32, 2)
		first, second := p.member("first"), p.member("second")
		rig.Eventually(p, "they wait", func() bool { return p.log.has("waits for relays of an earlier release to stop") })
		_, err := first.RelayBatch(t.Context())
		require.ErrorContains(t, err, "this one begins when the last of them has stopped")
		assert.Empty(t, p.broker.deliveries())
		p.formerEnds()
		p.broker.awaitAll(t, all)
		p.shared(first, second)
		p.inOrder(want)
		p.onceEach()
	})
}

// hasFormer registers a relay of an earlier release, which has shard 2.
func (p *post) hasFormer() {
	p.db.Do(p, `INSERT INTO millrace_outbox_relays (token, name, started_at, until) VALUES (1, 'old', 0, 9000000000000000)`)
	p.db.Do(p, `UPDATE millrace_outbox_shards SET owner = 1 WHERE shard = 2`)
}

// formerEnds has the lease of that relay lapse.
func (p *post) formerEnds() {
	p.db.Do(p, `UPDATE millrace_outbox_relays SET until = 1 WHERE token = 1`)
}

// A relay of an earlier release read the former shards just before they were replaced, and claims one just after.
func TestAFormerShardCannotBeTakenAfterwards(t *testing.T) {
	testdb.Turn(t, 3, seconds)
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		p := newPost(t, db)
		p.former(5)
		db.Do(t, `UPDATE millrace_outbox_shards SET owner = 1 WHERE shard = 2`) // by one that died
		owners := func() (owners []int64) {
			require.NoError(t, db.SelectContext(t.Context(), &owners, `SELECT owner FROM millrace_outbox_shards WHERE generation = 3 ORDER BY shard`))
			return owners
		}
		m := p.member("one", leased(time.Hour))
		p.shared(m)
		token := int64(db.Count(t, `SELECT token FROM millrace_outbox_relays`))
		require.Equal(t, []int64{token, token, token, token, token}, owners())

		require.NoError(t, m.stop())
		assert.Equal(t, token, int64(db.Count(t, `SELECT token FROM millrace_outbox_relays`)), "it lives for who reads that now")
		assert.Equal(t, []int64{token, token, token, token, token}, owners(), "it does not sign off")
		db.Do(t, `UPDATE millrace_outbox_relays SET until = 1`)
		next := p.member("next", leased(time.Minute))
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
		m := p.prepare("one")
		var once sync.Once
		m.db.Set(on(func(context.Context) error {
			once.Do(p.hasFormer)
			return nil
		}, "INSERT INTO millrace_outbox_relays"))
		_, all := p.spread(32, 1)
		m.running = start(t, m.Relay)
		rig.Eventually(p, "it waits", func() bool { return p.log.has("waits for relays of an earlier release to stop") })
		assert.Equal(t, 5, db.Count(t, `SELECT shards FROM millrace_outbox_layout`))
		p.formerEnds()
		p.broker.awaitAll(t, all)
		p.shared(m)
		p.onceEach()
	})
}
