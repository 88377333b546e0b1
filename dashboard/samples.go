package dashboard

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace-go/millrace/inbox/admin"
)

// How often the backlog is sampled, and how many samples are kept: two hours.
const (
	sampleEvery = 10 * time.Second
	mostSamples = 720
)

// Where counting a state of a consumer stops: the first request must not wait, and no request must
// wait long.
const (
	countFirst = 100
	countAsked = 1_000
	countRun   = 10_000
)

// sample is the backlog at one time.
type sample struct {
	at       time.Time
	backlogs []admin.Backlog
	countTo  int
}

// samples are the last samples of the backlog, oldest first. Each process has its own.
type samples struct {
	turn  turn // to take a sample
	mu    sync.Mutex
	taken []sample      // never changed in place
	took  time.Duration // the time that the last sample took
	runs  atomic.Int32  // number of running calls of Run
	stale atomic.Bool   // an operator has changed the figures
}

// turn lets one caller take a sample while the others wait for it, or for their context.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

func (t turn) take(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t turn) give() { <-t }

// lately returns the samples. The last one is at most a second old, or ten times as old as it took
// to take: sampling must not keep a database busy. While Run samples, its last sample will do,
// unless an operator has acted since.
func (h *Handler) lately(ctx context.Context) ([]sample, error) {
	s := &h.samples
	fresh, countTo := h.fresh(), countAsked
	if s.runs.Load() > 0 {
		countTo = countRun
	}
	acted := s.stale.Swap(false)
	if acted {
		fresh = 0
	}
	taken, err := h.backlog(ctx, fresh, countTo)
	if err != nil && acted {
		s.stale.Store(true) // the next page shows what the operator did
	}
	return taken, err
}

// fresh returns how old may be what Run reads again and again.
func (h *Handler) fresh() time.Duration {
	if h.samples.runs.Load() > 0 {
		return 2 * sampleEvery
	}
	return time.Second
}

// backlog returns the samples, of which the last is at most fresh old. If it must take one, it
// counts up to countTo, or less if it is the first sample. A sample that another request takes
// meanwhile will do.
func (h *Handler) backlog(ctx context.Context, fresh time.Duration, countTo int) ([]sample, error) {
	s := &h.samples
	if taken := s.known(fresh); taken != nil {
		return taken, nil
	}
	if err := s.turn.take(ctx); err != nil {
		return nil, err
	}
	defer s.turn.give()
	if taken := s.known(fresh); taken != nil {
		return taken, nil
	}
	if s.none() {
		countTo = countFirst
	}
	began := time.Now()
	all, err := h.ops.Backlog(ctx, admin.BacklogOptions{CountTo: countTo})
	if err != nil {
		return nil, err
	}
	return s.note(sample{time.Now().UTC(), all, countTo}, time.Since(began)), nil
}

// known returns the samples if the last one is at most fresh old, or ten times as old as it took to
// take, else nil.
func (s *samples) known(fresh time.Duration) []sample {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.taken); n > 0 && fresh > 0 && time.Since(s.taken[n-1].at) < max(fresh, 10*s.took) {
		return s.taken
	}
	return nil
}

// last returns when the last sample was taken.
func (s *samples) last() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.taken) == 0 {
		return time.Time{}
	}
	return s.taken[len(s.taken)-1].at
}

func (s *samples) none() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.taken) == 0
}

// note adds a sample and drops those that counted less: a line through both would show growth that
// was none.
func (s *samples) note(now sample, took time.Duration) []sample {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken = slices.DeleteFunc(slices.Clone(s.taken), func(old sample) bool { return old.countTo < now.countTo })
	if n := len(s.taken); n > 1 && now.at.Sub(s.taken[n-2].at) < sampleEvery {
		s.taken = s.taken[:n-1] // the last one was only for freshness
	}
	if len(s.taken) == mostSamples {
		s.taken = slices.Delete(s.taken, 0, 1)
	}
	s.taken, s.took = append(s.taken, now), took
	return s.taken
}

// Run samples the backlog until ctx ends, so that the charts have no gaps while nobody looks, and
// looks for what is wrong and, if that takes long, for groups of failures while somebody looks at them,
// so that pages need not. Calling it is optional. It logs failures and tries again.
func (h *Handler) Run(ctx context.Context) error {
	h.samples.runs.Add(1)
	defer h.samples.runs.Add(-1)
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	h.askForGroups() // the first page that shows the groups should not wait for them
	for {
		quick := h.samples.none()
		err := contained(func() error { return h.sampleOnce(ctx) })
		if err == nil && quick {
			continue
		}
		if err != nil && ctx.Err() == nil {
			h.config.Logger.Error("dashboard: could not sample the backlog; it will try again", err, nil)
		}
		for sampled := true; sampled; {
			select {
			case <-ctx.Done():
				return nil
			case <-h.regroup:
				err := contained(func() error { _, err := h.readGroups(ctx); return err })
				if err != nil && ctx.Err() == nil {
					h.config.Logger.Error("dashboard: could not group the failures; it will try again", err, nil)
				}
			case <-ticker.C:
				sampled = false
			}
		}
	}
}

// sampleOnce samples the backlog and looks for what is wrong.
func (h *Handler) sampleOnce(ctx context.Context) error {
	taken, err := h.backlog(ctx, 0, countRun)
	if err != nil {
		return err
	}
	h.wrong.acted.Add(1)
	return new(overview).addProblems(ctx, h, taken)
}

// contained returns a panic of look, of the codec's, say, as an error. It is for where nobody else recovers.
func contained(look func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return look()
}

// added adds up a figure of the selected consumers at each sample.
func added(taken []sample, of func(admin.Backlog) bool, figure func(admin.Backlog) float64) []point {
	return reduce(taken, of, func(all, b float64) float64 { return all + b }, figure)
}

// greatest returns the greatest figure of the selected consumers at each sample.
func greatest(taken []sample, of func(admin.Backlog) bool, figure func(admin.Backlog) float64) []point {
	return reduce(taken, of, func(all, b float64) float64 { return max(all, b) }, figure)
}

func reduce(
	taken []sample, of func(admin.Backlog) bool, join func(all, b float64) float64, figure func(admin.Backlog) float64,
) []point {
	points := make([]point, 0, len(taken))
	for _, s := range taken {
		p := point{at: s.at}
		for _, b := range s.backlogs {
			if of(b) {
				p.value = join(p.value, figure(b))
			}
		}
		points = append(points, p)
	}
	return points
}
