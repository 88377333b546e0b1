package inbox

import (
	"context"
	"time"

	"github.com/millrace-go/millrace/internal/stored"
)

// claimAges counts claims by their age.
type claimAges [4]int

// ageLimits are the upper bounds of the classes of age.
var ageLimits = [...]struct {
	reason string
	limit  time.Duration
}{{ReasonHour, time.Hour}, {ReasonDay, 24 * time.Hour}, {ReasonWeek, 7 * 24 * time.Hour}, {ReasonOlder, 1<<63 - 1}}

// add counts a claim by its age in microseconds.
func (a *claimAges) add(age int64) {
	for i := range ageLimits {
		if age <= ageLimits[i].limit.Microseconds() {
			a[i]++
			return
		}
	}
}

func (s *Store) observeClaims(ctx context.Context, c stored.Consumer, ages claimAges) {
	for i, n := range ages {
		s.tellApart(ctx, KindClaims, Event{Consumer: string(c.Name), Epoch: c.Epoch, Reason: ageLimits[i].reason, Count: n})
	}
}
