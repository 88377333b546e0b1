package inbox

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// More messages wait than gaps can remember. Some are never redelivered; the gaps of all others must end.
func TestEachGapEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g gaps
		left := map[string]bool{}
		for n := range 3 * maxReturned {
			message := strconv.Itoa(n)
			if n < maxReturned/2 {
				g.fail(message, time.Minute) // from now on another process gets it
			} else {
				left[message] = true
			}
		}
		for range 1000 {
			for message := range left {
				g.arrive()
				if _, again := g.fail(message, time.Minute); !again {
					delete(left, message)
				}
			}
			assert.LessOrEqual(t, len(g.messages), maxReturned)
			time.Sleep(20 * time.Second)
		}
		assert.Empty(t, left)
	})
}
