package outbox

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestManyKeysShareALook: a little of many keys goes out faster than much of a few.
func TestManyKeysShareALook(t *testing.T) {
	p := newTestPump(t, RelayConfig{})
	for i := range 200 {
		key := hash(fmt.Sprint(i))
		p.check(key)
		p.turn(key).limit = p.config.keyCap()
	}
	assert.Greater(t, len(p.askings()), 150)
}

// Others are found in an eighth of the window though all that looks for keys took hangs, and in half of it where
// they take more than that.
func TestLooksForKeysLeaveRoomToOthers(t *testing.T) {
	p := newTestPump(t, oneLane(RelayConfig{Batch: 100}))
	for i := range 200 {
		p.check(hash(fmt.Sprint(i)))
	}
	fill := func(from, n int64, drawn bool) {
		for id := range n {
			l := mail(from+id, "", "t")
			l.drawn = drawn
			p.hold(l)
		}
	}
	require.True(t, p.mayAsk())
	asked := 0
	for _, one := range p.askings() {
		asked += one.limit
	}
	assert.Equal(t, 175, asked)
	fill(1, 175, true)
	assert.False(t, p.mayAsk())
	assert.False(t, p.cannotTake())
	fill(1000, 20, false)
	assert.True(t, p.cannotTake())
	for id := range int64(30) {
		p.letGo(id + 1)
	}
	assert.Equal(t, 145, p.drawn)
	assert.False(t, p.cannotTake())
	fill(2000, 25, false)
	assert.True(t, p.cannotTake())
	assert.False(t, p.mayAsk(), "others have their turn")
	for id := range int64(90) {
		p.letGo(id + 31)
	}
	assert.True(t, p.mayAsk())
}

func TestAllBlockedKeysAreAskedAboutInTurn(t *testing.T) {
	p := newTestPump(t, RelayConfig{})
	for key := range int64(20_010) {
		p.blocked[key] = block{head: key + 1}
	}
	asked := make(map[int64]bool)
	for range 3 {
		heads := p.headsToAsk()
		assert.LessOrEqual(t, len(heads), 10_000)
		for _, key := range heads {
			asked[key] = true
		}
	}
	assert.Len(t, asked, 20_010)
}

func TestAWalkFindsEveryKey(t *testing.T) {
	p := newPumpOf(t, newTestRelay(t, oneLane(RelayConfig{})))
	tx := p.db.MustBegin()
	for i := range 2500 { // three steps; of one key more than a step
		key := int64(i)
		if i >= 1200 {
			key = math.MaxInt64
		}
		_, err := tx.ExecContext(t.Context(), `
			INSERT INTO millrace_outbox (key_hash, blocked_key, status, created_at, topic, uuid, order_key)
			VALUES (?, ?, 2, 1, 't', 'u', 'k')`, key, key)
		require.NoError(t, err)
	}
	require.NoError(t, tx.Commit())
	found := make(map[int64]bool)
	p.reader.walk.restart()
	for looks := 0; p.reader.walk.on; looks++ {
		require.Less(t, looks, 10)
		p.reader.last = due
		p.round(t, pending)
		for _, key := range p.asks {
			found[key] = true
		}
		p.asks = nil // for the test to look for nothing else
		if looks == 0 {
			// A failure does not begin anew, and stops nothing.
			from := p.reader.walk.from
			p.took(&reading{kind: pending, shards: p.shards, limit: 1, walks: true, walkErr: errors.New("too slow")})
			assert.Equal(t, from, p.reader.walk.from)
			assert.Zero(t, p.reader.failures)
			p.reader.walk.at = time.Time{}
		}
	}
	assert.Len(t, found, 1201)
	assert.Greater(t, time.Until(p.reader.walk.at), walkEvery/2)
}
