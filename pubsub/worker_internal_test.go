package pubsub

import (
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/millrace-go/millrace/inbox"
)

// TestALateHeartbeatIsToldByTheWallClock: the monotonic clock stands still while the machine is suspended, and the leases lapse
// all the same.
func TestALateHeartbeatIsToldByTheWallClock(t *testing.T) {
	t.Parallel()
	db, err := sqlx.Open("sqlite", "file:"+t.TempDir()+"/db")
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	store, err := inbox.NewStore(db, inbox.Config{})
	require.NoError(t, err)
	queue, err := store.Queue(inbox.QueueConfig{Consumer: "billing", Lease: time.Hour})
	require.NoError(t, err)
	w := newWorker(Durable{Store: store, Concurrency: 1}, queue, "orders", nil, nil)
	const monotonic = "m="
	assert.NotContains(t, w.renewed.String(), monotonic)
	require.NoError(t, w.extend(t.Context(), nil))
	assert.NotContains(t, w.renewed.String(), monotonic)
	assert.False(t, w.late())
	for _, passed := range []time.Duration{time.Hour, -time.Hour} { // the clock can be set back
		w.renewed = wallClock().Add(-passed)
		assert.True(t, w.late(), passed)
	}
}
