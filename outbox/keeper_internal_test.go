package outbox

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"
)

// openTestRelay returns a relay on an empty database, to a publisher that confirms.
func openTestRelay(t *testing.T, config RelayConfig) *Relay {
	t.Helper()
	db, err := sqlx.Open("sqlite", "file:"+t.TempDir()+"/outbox.db?_pragma=busy_timeout(10000)&_txlock=immediate")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, db.Close()) })
	r, err := NewRelay(db, confirming{}, config)
	require.NoError(t, err)
	return r
}

// newTestRelay is openTestRelay with tables.
func newTestRelay(t *testing.T, config RelayConfig) *Relay {
	t.Helper()
	r := openTestRelay(t, config)
	require.NoError(t, r.db.Migrate(t.Context()))
	return r
}

func TestAnAnswerToAnEarlierOrderGivesNothingUp(t *testing.T) {
	k := newKeeper(newTestRelay(t, RelayConfig{}))
	require.NoError(t, k.begin(t.Context()))
	beat := func() order {
		_, err := k.beat(t.Context())
		require.NoError(t, err)
		return <-k.changes
	}
	first := beat()
	require.Equal(t, allShards, first.shards)

	// The pump's answer to the order of one shard comes when it was told of all again.
	fewer := first
	fewer.shards = 1
	k.given <- fewer
	again := beat()
	require.Equal(t, first.shards, again.shards)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	rested := make(chan bool, 1)
	go func() { rested <- k.rest(ctx, time.Hour) }()
	for range 2 { // the second is taken when the first has been dealt with
		select {
		case k.given <- fewer:
		case <-rested:
			require.Fail(t, "it gives a shard up")
		}
	}
	cancel()
	require.False(t, <-rested)
	for len(k.given) > 0 {
		<-k.given
	}
	assert.Equal(t, first.shards, k.owned)
	v, err := k.look(t.Context(), division{k.generation, shardCount})
	require.NoError(t, err)
	assert.Equal(t, allShards, v.owned(k.lease.token))

	again.shards = 1
	k.given <- again
	assert.True(t, k.rest(t.Context(), time.Hour), "a shard was given up, so the keeper looks again")
	assert.Equal(t, 1, k.owned.size())
}

// TestRelayBatchWaitsForShardsNoLongerThanDrain: it has nothing in hand.
func TestRelayBatchWaitsForShardsNoLongerThanDrain(t *testing.T) {
	k := newKeeper(newTestRelay(t, RelayConfig{Drain: time.Nanosecond}))
	k.once = true
	require.NoError(t, k.begin(t.Context()))
	k.db.MustExec(`ALTER TABLE millrace_outbox_shards RENAME TO away`)
	ended := make(chan error, 1)
	go func() { ended <- k.run(t.Context()) }()
	select {
	case err := <-ended:
		require.ErrorIs(t, err, ErrNotMigrated)
	case <-time.After(time.Minute):
		require.Fail(t, "it waits for ever")
	}
}

func TestAnAnswerDoesNotHastenTheNextBeat(t *testing.T) {
	r := newTestRelay(t, RelayConfig{})
	synctest.Test(t, func(t *testing.T) {
		k := newKeeper(r)
		k.given <- order{}
		began := time.Now()
		assert.True(t, k.rest(t.Context(), time.Minute))
		assert.Equal(t, time.Minute, time.Since(began))
	})
}
