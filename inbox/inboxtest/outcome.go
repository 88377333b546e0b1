package inboxtest

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/stored"
)

// outcome is the result of a play.
type outcome struct {
	ledger   any
	produced []string            // each once, sorted
	order    map[string][]string // by order key, in the order of the first publishing
	open     []string            // messages that wait for an operator or a predecessor
	refused  map[string]bool     // those of them that were refused as a replay
	calls    []string            // through Process.External, each with its message
	problems []string            // found without a comparison
}

// collect reads the outcome after everything is closed.
func (pl *play) collect() (*outcome, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	o := &outcome{order: map[string][]string{}, calls: pl.calls()}
	var err error
	if o.ledger, err = pl.scenario.Ledger(ctx, pl.plain); err != nil {
		return nil, fmt.Errorf("read the ledger: %w", err)
	}
	first := map[string]published{}
	for _, p := range pl.broker.published {
		text := pl.scenario.Produced(p.topic, p.msg)
		if text == "" {
			continue
		}
		id := p.topic + "\x00" + p.msg.UUID
		if before, again := first[id]; again {
			if !before.msg.Equals(p.msg) {
				o.problems = append(o.problems, fmt.Sprintf("I3: %s was published twice under one UUID with other content", text))
			}
			continue
		}
		first[id] = p
		o.produced = append(o.produced, text)
		if pl.scenario.OrderKey != nil {
			if key := pl.scenario.OrderKey(p.topic, p.msg); key != "" {
				o.order[key] = append(o.order[key], text)
			}
		}
	}
	slices.Sort(o.produced)
	o.open, o.refused, err = pl.open(ctx)
	return o, err
}

// against returns the invariants that the outcome breaks, compared with the right one.
func (o *outcome) against(right *outcome) []string {
	problems := slices.Clone(o.problems)
	if !reflect.DeepEqual(o.ledger, right.ledger) {
		problems = append(problems, fmt.Sprintf("I1, I2: the ledger is\n    %s\n  instead of\n    %s", show(o.ledger), show(right.ledger)))
	}
	lost, extra := difference(right.produced, o.produced), difference(o.produced, right.produced)
	if len(lost) > 0 {
		problems = append(problems, "I3: never published: "+strings.Join(lost, ", "))
	}
	if len(extra) > 0 {
		problems = append(problems, "I1, I4: published under another UUID, or by a run that was rolled back: "+strings.Join(extra, ", "))
	}
	if len(lost)+len(extra) == 0 && !reflect.DeepEqual(o.order, right.order) {
		problems = append(problems, fmt.Sprintf("I5: published in the order %s instead of %s", show(o.order), show(right.order)))
	}
	if !slices.Equal(o.open, right.open) {
		problems = append(problems, fmt.Sprintf("I2, I6: left open: %s instead of %s", show(o.open), show(right.open)))
	}
	return problems
}

// difference returns the elements of all that others lacks, or has less often.
func difference(all, others []string) []string {
	count := map[string]int{}
	for _, s := range others {
		count[s]++
	}
	var more []string
	for _, s := range all {
		if count[s]--; count[s] < 0 {
			more = append(more, s)
		}
	}
	return more
}

func show(v any) string {
	if s, is := v.([]string); is && len(s) == 0 {
		return "nothing"
	}
	return fmt.Sprintf("%+v", v)
}

// pending returns what Millrace itself still has to do, or "".
func (pl *play) pending() string {
	if pl.store == nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	open, err := admin.New(pl.store).Find(ctx, admin.Filter{}, 0, admin.MaxPage) // in one statement, because rows change their state
	if err != nil {
		return err.Error()
	}
	for _, m := range open {
		switch m.Status {
		case admin.Received, admin.InProgress, admin.Settling, admin.FailedRetryable:
			if left, err := pl.leftBehind(ctx, m); left {
				continue
			} else if err != nil {
				return err.Error()
			}
			return fmt.Sprintf("%s of %s is %v", m.UUID, m.Consumer, m.Status)
		case admin.Held, admin.Parked, admin.FailedTerminal: // waits for a predecessor or an operator
		}
	}
	var states []struct {
		Status   int
		Messages int
		Age      int64
	}
	if err := pl.plain.SelectContext(ctx, &states, pl.countOutbox, 1, 1, 1, 1); err != nil {
		return err.Error()
	}
	for _, state := range states {
		if state.Messages > 0 && state.Status != dialect.OutboxParked {
			return "messages of the outbox are not sent"
		}
	}
	return ""
}

// leftBehind reports whether only an operator closes m: the broker has given it up, or it failed in an epoch before and no queue
// takes it over.
func (pl *play) leftBehind(ctx context.Context, m admin.Message) (left bool, err error) {
	if m.Status != admin.FailedRetryable {
		return false, nil
	}
	if pl.broker.gaveUp(pl.refusable) && m.UUID == pl.refusable.UUID {
		return true, nil
	}
	all, err := pl.store.Internals().Rows().Consumers(ctx, m.Consumer, nil)
	for _, c := range all {
		if c.Served {
			return false, err
		}
		left = left || c.Epoch > m.Epoch
	}
	return left, err
}

// open lists the messages that wait for an operator or a predecessor, and returns which of them were refused as a
// replay. A message that waits in two epochs counts once, and what failed in an epoch before does not count.
func (pl *play) open(ctx context.Context) (all []string, refused map[string]bool, err error) {
	if pl.store == nil {
		return nil, nil, nil
	}
	rows := pl.store.Internals().Rows()
	refused = make(map[string]bool)
	waits := make(map[string]map[int]int) // counts by epoch
	for after := int64(0); ; {
		page, err := admin.New(pl.store).Find(ctx, admin.Filter{}, after, admin.MaxPage)
		if err != nil {
			return nil, nil, fmt.Errorf("list the open messages: %w", err)
		}
		for _, m := range page {
			if left, err := pl.leftBehind(ctx, m); err != nil {
				return nil, nil, err
			} else if left {
				continue
			}
			text := fmt.Sprintf("%s of %s is %v (%s)", m.UUID, m.Consumer, m.Status, m.Reason)
			row, err := rows.Message(ctx, rows.Reader(ctx), m.ID)
			if err != nil {
				return nil, nil, err
			}
			refused[text] = row.ReasonCode == stored.ReasonReplayed
			before := slices.Max(append(slices.Collect(maps.Values(waits[text])), 0))
			if waits[text] == nil {
				waits[text] = make(map[int]int)
			}
			if waits[text][m.Epoch]++; waits[text][m.Epoch] > before {
				all = append(all, text)
			}
		}
		if len(page) < admin.MaxPage {
			slices.Sort(all)
			return all, refused, nil
		}
		after = page[len(page)-1].ID
	}
}
