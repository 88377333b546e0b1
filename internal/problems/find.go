package problems

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/stored"
)

// Limits of ages. The alerts of metrics/alerts.yml have the same, and a test compares them.
const (
	GapTooLong      = 15 * time.Minute
	OutcomeTooLong  = 15 * time.Minute
	PendingTooLong  = 5 * time.Minute
	OutboxTooLong   = 2 * time.Minute
	handoverTooLong = 15 * time.Second // a lease of a relay: by then another one has taken its shards
)

// Service is whose problems are to be found, and what is known of it.
type Service struct {
	Store    *inbox.Store
	Backlogs []admin.Backlog
	Outbox   *Outbox // nil: it has none
}

// finder finds the problems of a service.
type finder struct {
	Service
	ops   *admin.Admin
	rows  *stored.Rows
	now   time.Time // by the database's clock
	found []Problem
}

// Find returns what is wrong, worst first. It takes some milliseconds, however many rows there are. It returns an
// error if the database does not answer. What it cannot read for another reason is a problem of its own.
func Find(ctx context.Context, s Service) ([]Problem, error) {
	f := &finder{Service: s, ops: admin.New(s.Store), rows: s.Store.Internals().Rows()}
	var err error
	if f.now, err = f.rows.Now(ctx); err != nil {
		return nil, fmt.Errorf("inbox: read the time: %w", database.Explain(err))
	}
	f.outbox()
	served := f.served()
	for _, b := range s.Backlogs {
		f.late(b, served[b.Consumer])
	}
	for _, look := range []func(context.Context) error{f.outcomes, f.stuck, f.paused, f.steps, f.janitor} {
		switch err := database.Explain(look(ctx)); {
		case err != nil && !legible(err):
			return nil, err
		case err != nil:
			f.add(Problem{Kind: Unreadable, What: err.Error()})
		}
	}
	return sorted(f.found), nil
}

// legible reports whether err says that the database answers, but tables are missing or not as they should be, or the role may
// not read them.
func legible(err error) bool {
	return dialect.Denied(err) || !errors.Is(err, database.ErrUnavailable) && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
}

func (f *finder) add(p Problem) { f.found = append(f.found, p) }

// addOf adds a problem of one consumer.
func (f *finder) addOf(consumer string, epoch int, p Problem) {
	p.Consumer, p.Epoch, p.What = consumer, epoch, named(consumer, epoch)+": "+p.What
	f.add(p)
}

func named(consumer string, epoch int) string {
	if epoch == 0 {
		return consumer
	}
	return fmt.Sprintf("%s, epoch %d", consumer, epoch)
}

// served tells the consumers that a queue serves: that of the newest epoch takes over the messages of the older ones.
func (f *finder) served() map[string]bool {
	served := make(map[string]bool)
	for _, b := range f.Backlogs { // sorted by name and epoch
		served[b.Consumer] = b.Served
	}
	return served
}

// late finds what waits for too long at a consumer.
func (f *finder) late(b admin.Backlog, served bool) {
	if b.OldestHeld >= GapTooLong {
		f.addOf(b.Consumer, b.Epoch, Problem{Kind: Gap, What: "an earlier version is missing", Count: b.Held, Since: b.OldestHeld})
	}
	served = served || b.Served
	switch {
	case b.Paused:
	case !served && (b.OldestPending >= PendingTooLong || b.Stale.N > 0):
		f.addOf(b.Consumer, b.Epoch, Problem{
			Kind: NotServed, What: "no queue delivers what is stored", Count: pending(b), Since: b.OldestPending,
		})
	case b.OldestPending >= PendingTooLong:
		f.addOf(b.Consumer, b.Epoch, Problem{
			Kind: OldPending, What: "stored messages are not handled in time", Count: pending(b), Since: b.OldestPending,
		})
	}
}

// pending counts the messages that a queue delivers.
func pending(b admin.Backlog) admin.Count { return b.Due.Plus(b.Waiting).Plus(b.Taken).Plus(b.Stale) }

// outcomes finds what handlers returned and the broker may lack.
func (f *finder) outcomes(ctx context.Context) error {
	var keys map[string]string // of the oldest, by consumer
	for _, b := range f.Backlogs {
		if b.OldestUnsettled < OutcomeTooLong {
			continue
		}
		if keys == nil {
			keys = make(map[string]string)
			found, err := f.Store.Internals().Unsettled(ctx, stored.UnsettledFilter{Age: OutcomeTooLong}, mostOfAKind)
			if err != nil && !legible(err) {
				return err
			}
			for _, o := range slices.Backward(found) {
				keys[named(o.Consumer, o.Epoch)] = o.MessageID
			}
		}
		f.addOf(b.Consumer, b.Epoch, Problem{
			Kind: Outcomes, What: "what a handler returned may not be published", Count: b.Unsettled, Since: b.OldestUnsettled,
			Key: keys[named(b.Consumer, b.Epoch)],
		})
	}
	return nil
}

// How many stuck messages are read in all, and at least of each consumer and state.
const (
	mostStuck  = 2_000
	leastStuck = 50
)

// stuck finds the groups of messages that wait for an operator.
func (f *finder) stuck(ctx context.Context) error {
	parts := 0
	for _, b := range f.Backlogs {
		parts += min(1, b.FailedTerminal.N) + min(1, b.Parked.N)
	}
	if parts == 0 {
		return nil
	}
	groups, err := f.ops.StuckGroups(ctx, max(leastStuck, mostStuck/parts))
	for _, g := range groups {
		p := Problem{
			Kind: Stuck, Group: max(0, g.ErrorGroup), Count: admin.Count{N: g.Messages, AtLeast: g.AtLeast}, Since: f.now.Sub(g.First),
			What: strings.Join(g.Consumers, ", ") + ": " + cmp.Or(g.Shape, "no error is noted"), Error: g.Error,
		}
		if len(g.Consumers) == 1 {
			p.Consumer = g.Consumers[0]
		}
		f.add(p)
	}
	return err
}

// lookBack is in how many entries of the audit log a pause is looked for.
const lookBack = 100

// paused finds consumers whose messages wait because of a pause.
func (f *finder) paused(ctx context.Context) error {
	for _, b := range f.Backlogs {
		if !b.Paused || !b.Served && pending(b).N == 0 {
			continue // if its service is gone, nothing waits for the end of the pause
		}
		entries, err := f.ops.Audit(ctx, admin.ConsumerFilter{Consumer: b.Consumer, Epoch: &b.Epoch}, 0, lookBack)
		if err != nil {
			return err
		}
		p := Problem{Kind: Paused, What: "paused", Count: pending(b)}
		for _, e := range entries {
			if e.Action == "pause" {
				p.What, p.Since = fmt.Sprintf("paused by %s: %s", e.Operator.Name, e.Operator.Reason), f.now.Sub(e.At)
				break
			}
		}
		f.addOf(b.Consumer, b.Epoch, p)
	}
	return nil
}

// steps finds steps of which nobody knows whether they were done.
func (f *finder) steps(ctx context.Context) error {
	const most = 100
	rows, err := f.rows.StepsInDoubt(ctx, most)
	if dialect.Denied(err) { // who may not read them takes no steps; Store.Check warns
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for steps in doubt: %w", err)
	}
	p := Problem{Kind: StepsInDoubt, Count: admin.Count{AtLeast: len(rows) == most}}
	for _, row := range rows {
		if !row.Undecided() {
			continue
		}
		if p.Count.N++; p.Count.N == 1 { // the oldest comes first
			p.Consumer, p.Epoch, p.Since = string(row.Consumer), row.Epoch, time.Duration(-row.Remaining)*time.Microsecond
			p.What = fmt.Sprintf("%s: nobody knows whether the step %q was done", named(p.Consumer, p.Epoch), row.Name)
			p.Key = keycode.String(row.MessageID)
		}
	}
	if p.Count.N > 0 {
		f.add(p)
	}
	return nil
}

// janitor finds consumers for which no janitor runs.
func (f *finder) janitor(ctx context.Context) error {
	all, err := f.rows.Neglected(ctx)
	for _, n := range all {
		what := "no janitor runs, so expired claims stay"
		if n.Never {
			what = "no janitor has ever run, so expired claims stay"
		}
		f.addOf(n.Of.Name, n.Of.Epoch, Problem{Kind: Cleanup, What: what, Since: n.Since})
	}
	return err
}
