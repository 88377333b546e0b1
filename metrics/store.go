package metrics

import (
	"context"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/internal/dialect"
)

// storeCollector has the gauges of the inbox's tables.
type storeCollector struct {
	*figures
	store *inbox.Store
	inbox *inboxObserver

	messages, pending, held, unsettled, unsettledAge, paused, served, retention, window, doubtful, rows *prometheus.Desc
}

func newStoreCollector(b *Builder, store *inbox.Store) *storeCollector {
	const in = "inbox"
	c := &storeCollector{figures: newFigures(&b.config, in), store: store, inbox: b.inbox}
	of := func(name, help string, more ...string) *prometheus.Desc {
		return c.desc(in, name, help, append([]string{"consumer"}, more...)...)
	}
	c.messages = of("messages", "Open messages by state, counted up to a limit.", "state")
	c.pending = of("oldest_pending_age_seconds", "Age of the oldest message that waits for a handler.")
	c.held = of("oldest_held_age_seconds", "Age of the oldest message that waits for its predecessor.")
	c.unsettled = of("unsettled_outcomes", "Outcomes that may be unpublished, counted up to a limit.")
	c.unsettledAge = of("oldest_unsettled_age_seconds", "Age of the oldest outcome that may be unpublished.")
	c.paused = of("paused", "1 while an operator has paused the consumer.")
	c.served = of("served", "1 while a queue in some process delivers the consumer's stored messages.")
	c.retention = of("retention_seconds", "How long claims are kept; +Inf for ever.")
	c.window = of("window_seconds", "The longest declared redelivery window; 0 if there is none.")
	c.doubtful = of("steps_in_doubt", "Steps of which nobody knows whether they were done, counted up to 1000 over all consumers.")
	c.rows = c.desc(in, "table_rows", "Rows of each table, by the database's statistics where it has some.", "table")
	c.look = c.lookAt
	return c
}

// consumerFigures are the figures of all epochs of a consumer.
type consumerFigures struct {
	states                      map[string]int
	pending, held, unsettledAge time.Duration
	unsettled                   int
	paused, pausedInUse, served bool
	retention, window           time.Duration
}

func (c *storeCollector) lookAt(ctx context.Context) ([]prometheus.Metric, error) {
	backlog, err := admin.New(c.store).Backlog(ctx, admin.BacklogOptions{CountTo: c.config.CountTo})
	if err != nil {
		return nil, err
	}
	tables, err := admin.New(c.store).Tables(ctx)
	if err != nil {
		return nil, err
	}
	steps, err := admin.New(c.store).StepsInDoubt(ctx, admin.MaxPage)
	if err != nil && !dialect.Denied(err) { // who may not read them takes no steps; Store.Check warns
		return nil, err
	}
	doubtful := make(map[string]int)
	for _, s := range steps {
		doubtful[clean(s.Consumer)]++
	}
	var found []prometheus.Metric
	for name, f := range byConsumer(backlog) {
		c.inbox.consumers.of(name) // its counters begin with 0, before anything happens
		for state, n := range f.states {
			found = append(found, gauge(c.messages, float64(n), name, state))
		}
		retention := f.retention.Seconds()
		if f.retention == inbox.Forever {
			retention = math.Inf(1)
		}
		found = append(found,
			gauge(c.pending, f.pending.Seconds(), name), gauge(c.held, f.held.Seconds(), name),
			gauge(c.unsettled, float64(f.unsettled), name), gauge(c.unsettledAge, f.unsettledAge.Seconds(), name),
			gauge(c.paused, truth(f.paused), name), gauge(c.served, truth(f.served), name),
			gauge(c.retention, retention, name), gauge(c.window, f.window.Seconds(), name),
			gauge(c.doubtful, float64(doubtful[name]), name))
		delete(doubtful, name)
	}
	for name, n := range doubtful { // consumers of leases
		found = append(found, gauge(c.doubtful, float64(n), name))
	}
	for _, t := range tables {
		if t.Rows >= 0 {
			found = append(found, gauge(c.rows, float64(t.Rows), t.Name))
		}
	}
	return found, nil
}

// byConsumer adds up the epochs of each consumer, by its label value. Settings are those of the
// newest epoch, which comes last.
func byConsumer(backlog []admin.Backlog) map[string]*consumerFigures {
	all := make(map[string]*consumerFigures)
	for _, b := range backlog {
		name := clean(b.Consumer)
		f := all[name]
		if f == nil {
			f = &consumerFigures{states: make(map[string]int)}
			all[name] = f
		}
		for state, count := range map[string]admin.Count{
			"due": b.Due, "waiting": b.Waiting, "taken": b.Taken, "in_progress": b.InProgress, "stale": b.Stale,
			"settling": b.Settling, "failed_terminal": b.FailedTerminal, "parked": b.Parked, "held": b.Held,
		} {
			f.states[state] += count.N
		}
		f.pending, f.held = max(f.pending, b.OldestPending), max(f.held, b.OldestHeld)
		f.unsettled, f.unsettledAge = f.unsettled+b.Unsettled.N, max(f.unsettledAge, b.OldestUnsettled)
		f.served, f.pausedInUse = f.served || b.Served, f.pausedInUse || b.Paused && b.Served
		f.paused = b.Paused || f.pausedInUse // an old epoch stays paused
		f.retention, f.window = b.Retention, b.Window
	}
	return all
}
