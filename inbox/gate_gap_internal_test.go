package inbox

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// More messages wait than are remembered, some of them never come again, and each of the others comes to its end.
func TestEachGapEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g gaps
		left := map[string]bool{}
		for n := range 3 * maxReturned {
			message := strconv.Itoa(n)
			if n < maxReturned/2 {
				g.fail(message, time.Minute) // another process gets it from then on
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
