package inbox

import "sync/atomic"

// reread guesses from the last deliveries whether the next one is a duplicate, as when a topic is
// read again from an earlier offset. Looking a key up before claiming it costs a first delivery
// one round trip and saves a duplicate three.
type reread struct{ score atomic.Int32 }

const (
	rereadLikely = 8
	rereadMost   = 16
)

// likely reports whether a lookup before the claim pays.
func (r *reread) likely() bool { return r.score.Load() >= rereadLikely }

// saw counts one delivery. Counts lost between two goroutines do not matter.
func (r *reread) saw(duplicate bool) {
	score := r.score.Load()
	if duplicate {
		r.score.Store(min(score+2, rereadMost))
	} else if score > 0 {
		r.score.Store(score - 1)
	}
}
