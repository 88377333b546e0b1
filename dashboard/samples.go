package dashboard

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace-go/millrace/inbox/admin"
)

// How often the backlog is looked at, and how many looks are remembered: two hours of them.
const (
	sampleEvery = 10 * time.Second
	mostSamples = 720
)

// Up to where a state of a consumer is counted: who asks first should not wait, and who asks
// should not wait long.
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

// samples are the last looks at the backlog, oldest first. They are of this process alone
// and end with it.
type samples struct {
	turn  turn // to look
	mu    sync.Mutex
	taken []sample      // never changed in place
	took  time.Duration // the last look
	runs  atomic.Int32  // how often Run is at work
	stale atomic.Bool   // something was done that changes the figures
}

// turn lets one caller look while the others wait for what it finds, or for their context.
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

// lately returns what was sampled, with a look at the end that is no older than a second, or
// than ten times what it took: looking must not be what keeps a database busy. While Run
// looks, what it saw last is good enough, unless something was done since.
func (h *Handler) lately(ctx context.Context) ([]sample, error) {
	s := &h.samples
	fresh, countTo := time.Second, countAsked
	if s.runs.Load() > 0 {
		fresh, countTo = 2*sampleEvery, countRun
	}
	if s.stale.Swap(false) {
		fresh = 0
	}
	return h.backlog(ctx, fresh, countTo)
}

// backlog returns what was sampled, with a look at the end that is no older than fresh. If it
// has to look itself it counts up to countTo, or less where nothing was sampled yet; a look that
// others made is good enough.
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

// known returns what was sampled if the last look is no older than fresh, or than ten times
// what it took, else nil.
func (s *samples) known(fresh time.Duration) []sample {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.taken); n > 0 && fresh > 0 && time.Since(s.taken[n-1].at) < max(fresh, 10*s.took) {
		return s.taken
	}
	return nil
}

func (s *samples) none() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.taken) == 0
}

// note adds a look, and forgets those that counted less: a line through both would say that
// something had grown.
func (s *samples) note(now sample, took time.Duration) []sample {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken = slices.DeleteFunc(slices.Clone(s.taken), func(old sample) bool { return old.countTo < now.countTo })
	if n := len(s.taken); n > 1 && now.at.Sub(s.taken[n-2].at) < sampleEvery {
		s.taken = s.taken[:n-1] // the last one was only to be fresh
	}
	if len(s.taken) == mostSamples {
		s.taken = slices.Delete(s.taken, 0, 1)
	}
	s.taken, s.took = append(s.taken, now), took
	return s.taken
}

// Run samples the backlog until ctx ends, so that the charts have no gaps while nobody
// looks, and pages need not count. It is not needed otherwise. Failures are logged and tried again.
func (h *Handler) Run(ctx context.Context) error {
	h.samples.runs.Add(1)
	defer h.samples.runs.Add(-1)
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	for {
		quick := h.samples.none()
		_, err := h.backlog(ctx, 0, countRun)
		if err == nil && quick {
			continue
		}
		if err != nil && ctx.Err() == nil {
			h.config.Logger.Error("dashboard: the backlog could not be sampled; tried again", err, nil)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// added adds up a figure of the consumers that are meant, at each sample.
func added(taken []sample, of func(admin.Backlog) bool, figure func(admin.Backlog) float64) []point {
	return reduce(taken, of, func(all, b float64) float64 { return all + b }, figure)
}

// greatest is the greatest figure of the consumers that are meant, at each sample.
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
