package dashboard

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/millrace-go/millrace/inbox/admin"
)

// overview is the first page: what is wrong, how many messages there are, and how it went.
type overview struct {
	Problems  []problemLine
	Consumer  string // the charts are about this one alone
	Stuck     admin.Count
	Open      admin.Count
	Held      admin.Count
	Oldest    time.Duration
	Paused    int
	Unsent    admin.Count // in the outbox
	Given     admin.Count // parked there
	Windows   []windowLink
	Charts    []chart
	Consumers []consumerLine
	Heads     map[string]*heading

	window window
	since  time.Time
}

type windowLink struct {
	Label   string
	To      string
	Current bool
}

// consumerLine is a consumer in the table of the overview.
type consumerLine struct {
	admin.Backlog
	Open    admin.Count // delivered without an operator
	Stuck   admin.Count // waits for an operator
	Handled int64
	Failed  int64
	Spark   string
	State   string // in which most wait for an operator, as the inbox has it
}

// open counts the messages that are being handled or will be without an operator.
func open(b admin.Backlog) admin.Count {
	return sum(b.Due, b.Waiting, b.Taken, b.InProgress, b.Stale, b.Settling)
}

func stuck(b admin.Backlog) admin.Count { return sum(b.FailedTerminal, b.Parked) }

// kept counts all open messages.
func kept(b admin.Backlog) admin.Count { return sum(open(b), stuck(b), b.Held) }

func sum(counts ...admin.Count) (all admin.Count) {
	for _, c := range counts {
		all = all.Plus(c)
	}
	return all
}

func (h *Handler) overview(v *visit) (any, error) {
	ctx := v.r.Context()
	taken, err := h.lately(ctx)
	if err != nil {
		return nil, h.out(err)
	}
	o := &overview{Consumer: v.query("consumer"), window: windowNamed(v.query("window"))}
	o.since = v.Now.Add(-o.window.length).Truncate(time.Minute)
	acts, err := h.activity(ctx, o.since)
	if err != nil {
		return nil, h.out(err)
	}
	if err := o.addProblems(ctx, h, taken); err != nil {
		return nil, h.out(err)
	}
	for _, w := range windows {
		to := link("./", "window", w.name, "consumer", o.Consumer, "sort", v.query("sort"))
		o.Windows = append(o.Windows, windowLink{w.name, to, w == o.window})
	}
	o.list(taken, acts, v.Now)
	if err := o.sort(v); err != nil {
		return nil, err
	}
	o.Charts = o.charts(taken, acts, v.Now)
	return o, nil
}

// list adds the figures of each consumer, and of all together.
func (o *overview) list(taken []sample, acts []admin.Activity, now time.Time) {
	for _, b := range taken[len(taken)-1].backlogs {
		line := consumerLine{Backlog: b, Open: open(b), Stuck: stuck(b)}
		line.State = slug(admin.Parked)
		if b.FailedTerminal.N > b.Parked.N {
			line.State = slug(admin.FailedTerminal)
		}
		same := func(x admin.Backlog) bool { return x.Consumer == b.Consumer && x.Epoch == b.Epoch }
		points := added(taken, same, func(b admin.Backlog) float64 { return float64(kept(b).N) })
		line.Spark = spark(points, taken[0].at, now)
		for _, a := range acts {
			if a.Consumer == b.Consumer && a.Epoch == b.Epoch {
				line.Handled, line.Failed = line.Handled+a.Completed, line.Failed+a.Failed
			}
		}
		o.Consumers = append(o.Consumers, line)
		o.Stuck, o.Open, o.Held = sum(o.Stuck, line.Stuck), sum(o.Open, line.Open), sum(o.Held, b.Held)
		o.Oldest = max(o.Oldest, b.OldestPending)
		if b.Paused {
			o.Paused++
		}
	}
}

// consumersBy compares consumers by the columns of their list.
var consumersBy = map[string]func(a, b consumerLine) int{
	"consumer": byFigure(func(l consumerLine) string { return l.Consumer }),
	"open":     byFigure(func(l consumerLine) int { return l.Open.N }),
	"stuck":    byFigure(func(l consumerLine) int { return l.Stuck.N }),
	"held":     byFigure(func(l consumerLine) int { return l.Held.N }),
	"handled":  byFigure(func(l consumerLine) int64 { return l.Handled }),
	"failed":   byFigure(func(l consumerLine) int64 { return l.Failed }),
	"oldest":   byFigure(func(l consumerLine) time.Duration { return l.OldestPending }),
}

// sort sorts the consumers.
func (o *overview) sort(v *visit) error {
	by, err := v.ordered(order{"consumer", false}, slices.Collect(maps.Keys(consumersBy))...)
	if err != nil {
		return err
	}
	sorted(by, o.Consumers, consumersBy)
	to := func(sort string) string {
		return link("./", "window", v.query("window"), "consumer", o.Consumer, "sort", sort)
	}
	o.Heads = map[string]*heading{"consumer": by.heading(order{"consumer", false}, "Consumer", "", to)}
	for column, h := range map[string][2]string{
		"open": {"To be handled", "n"}, "stuck": {"Operator", "n"}, "held": {"Held", "n wide"}, "handled": {"Handled", "n wide"},
		"failed": {"Failed", "n wide"}, "oldest": {"Oldest", "n"},
	} {
		o.Heads[column] = by.heading(order{column, true}, h[0], h[1], to)
	}
	return nil
}

// charts draws the charts of one consumer or of all.
func (o *overview) charts(taken []sample, acts []admin.Activity, now time.Time) []chart {
	of := func(b admin.Backlog) bool { return o.Consumer == "" || b.Consumer == o.Consumer }
	did := func(a admin.Activity) bool { return o.Consumer == "" || a.Consumer == o.Consumer }
	begin := now.Add(-min(o.window.length, max(time.Minute, now.Sub(taken[0].at))))
	for len(taken) > 1 && taken[0].at.Before(begin) {
		taken = taken[1:]
	}
	number := func(f float64) string { return thousands(int64(f)) }
	rate := func(f float64) string {
		if f < 10 && f != float64(int64(f)) {
			return fmt.Sprintf("%.1f", f)
		}
		return thousands(int64(f))
	}
	seconds := func(f float64) string { return age(time.Duration(f * float64(time.Second))) }
	rates := func(figure func(admin.Activity) int64) []point {
		return perMinute(acts, o.window, o.since, now, did, figure)
	}
	return []chart{
		draw("handled", "Handled per minute", "good", rates(func(a admin.Activity) int64 { return a.Completed }), o.since, now, rate),
		draw("failed", "Failed per minute", "bad", rates(func(a admin.Activity) int64 { return a.Failed }), o.since, now, rate),
		draw("time", "Time of a run", "", perRun(acts, o.window, o.since, now, did), o.since, now, seconds),
		draw("backlog", "To be handled", "", added(taken, of, func(b admin.Backlog) float64 { return float64(open(b).N) }), begin, now, number),
		draw("stuck", "Waiting for an operator", "bad", added(taken, of, func(b admin.Backlog) float64 { return float64(stuck(b).N) }), begin, now, number),
		draw("oldest", "Oldest to be handled", "warn", greatest(taken, of, func(b admin.Backlog) float64 { return b.OldestPending.Seconds() }), begin, now, seconds),
	}
}
