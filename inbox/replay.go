package inbox

import "sync/atomic"

// replay guesses from the last deliveries whether the next one is a duplicate, as in a
// topic that is read again from an earlier offset. Looking before claiming costs a first
// delivery one round trip and saves a duplicate three.
type replay struct{ score atomic.Int32 }

const (
	replayLikely = 8
	replayMost   = 16
)

// likely reports whether it pays to look before claiming.
func (r *replay) likely() bool { return r.score.Load() >= replayLikely }

// saw counts what a delivery was. Counts lost between two goroutines do not matter.
func (r *replay) saw(duplicate bool) {
	score := r.score.Load()
	if duplicate {
		r.score.Store(min(score+2, replayMost))
	} else if score > 0 {
		r.score.Store(score - 1)
	}
}
