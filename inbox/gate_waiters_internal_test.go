package inbox

import (
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// However many messages come too early, few of them wait, and those that leave are the farthest from their turns.
func TestFewMessagesWait(t *testing.T) {
	var w waiters
	assert.False(t, w.open())
	assert.Nil(t, w.join("a", 2, 0, 1), "of one in flight none may wait")
	for range 16 {
		w.enter()
	}
	far := w.join("a", 1000, 0, 100)
	assert.Nil(t, w.join("b", 2, 0, maxWaitingBytes+1), "one that is too large waits in the table")
	assert.Equal(t, 1, w.waiting, "and nobody leaves for it")
	w.leave(far)
	seated := map[*waiter]int64{}
	for n := range int64(20_000) {
		version := 2 + rand.Int64N(1000)
		one := w.join(strconv.FormatInt(n%7, 10), version, 0, 100)
		if one == nil {
			for _, other := range seated {
				require.LessOrEqual(t, other, version)
			}
			continue
		}
		seated[one] = version
		for other := range seated {
			select {
			case reached := <-other.turn:
				require.False(t, reached)
				require.Greater(t, seated[other], version)
				delete(seated, other)
			default:
			}
		}
		require.LessOrEqual(t, len(seated), 12)
		require.Equal(t, len(seated), w.waiting)
		require.Equal(t, 100*len(seated), w.bytes)
	}
	for n := range 7 {
		w.tell(strconv.Itoa(n), 2000)
	}
	for one := range seated {
		select {
		case reached := <-one.turn:
			assert.True(t, reached)
		default: // it had left to make room
		}
	}
	assert.Zero(t, w.waiting)
	assert.Zero(t, w.bytes)
	assert.Empty(t, w.lines)
}
