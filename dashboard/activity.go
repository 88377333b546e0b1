package dashboard

import (
	"context"
	"time"

	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/internal/dialect"
)

// window is a period that the overview can show.
type window struct {
	name   string // in the address
	length time.Duration
	step   time.Duration // of the figures per minute
}

// windows are the periods to choose from; the first is the default.
var windows = []window{
	{"1h", time.Hour, time.Minute}, {"6h", 6 * time.Hour, 5 * time.Minute}, {"24h", 24 * time.Hour, 15 * time.Minute},
}

func windowNamed(name string) window {
	for _, w := range windows {
		if w.name == name {
			return w
		}
	}
	return windows[0]
}

// activities caches the activity for a moment, because every overview reads it.
type activities struct {
	turn  turn
	at    time.Time
	since time.Time
	found []admin.Activity
}

// activity returns the activity since then, at most a few seconds old.
func (h *Handler) activity(ctx context.Context, since time.Time) ([]admin.Activity, error) {
	a := &h.done
	if err := a.turn.take(ctx); err != nil {
		return nil, err
	}
	defer a.turn.give()
	since = since.Truncate(time.Minute)
	if a.since.Equal(since) && time.Since(a.at) < 3*time.Second {
		return a.found, nil
	}
	found, err := h.ops.Activity(ctx, since)
	if dialect.Denied(err) { // nobody writes it: an inbox alone does without the right, and Check warns
		found, err = nil, nil
	}
	if err != nil {
		return nil, err
	}
	a.at, a.since, a.found = time.Now(), since, found
	return found, nil
}

// perMinute returns the rate of a figure in each step of a window.
func perMinute(all []admin.Activity, w window, since, now time.Time, of func(admin.Activity) bool, figure func(admin.Activity) int64) []point {
	points := stepped(all, w, since, now, of, figure)
	for i := range points {
		points[i].value /= w.step.Minutes()
	}
	return points
}

// perRun returns the seconds per handler run in each step, 0 if no run ended.
func perRun(all []admin.Activity, w window, since, now time.Time, of func(admin.Activity) bool) []point {
	runs := stepped(all, w, since, now, of, func(a admin.Activity) int64 { return a.Completed + a.Failed })
	points := stepped(all, w, since, now, of, func(a admin.Activity) int64 { return a.Handling.Microseconds() })
	for i := range points {
		points[i].value /= max(1, runs[i].value) * 1e6
	}
	return points
}

// stepped adds up a figure in each step of a window. It leaves out the last step, which has not
// ended, unless it is the only one.
func stepped(all []admin.Activity, w window, since, now time.Time, of func(admin.Activity) bool, figure func(admin.Activity) int64) []point {
	steps := int(now.Sub(since)/w.step) + 1
	sums := make([]int64, steps)
	for _, a := range all {
		if i := int(a.Minute.Sub(since) / w.step); of(a) && i >= 0 && i < steps {
			sums[i] += figure(a)
		}
	}
	points := make([]point, 0, steps)
	for i, n := range sums[:max(1, steps-1)] {
		points = append(points, point{since.Add(time.Duration(i) * w.step), float64(n)})
	}
	return points
}
