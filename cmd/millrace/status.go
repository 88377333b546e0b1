package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/internal/problems"
)

const statusExamples = `  millrace status
  millrace status --watch
  millrace status --watch=10s --namespace shop
  millrace status --exit-code > /dev/null || echo 'something is wrong'
  millrace status --json | jq '.problems[] | select(.severity == "error") | .next'`

func (a *app) statusCommand() *cobra.Command {
	var every time.Duration
	var exitCode bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "What is wrong, what waits, and who works on it",
		Long: `Shows what is wrong, worst first: since when, how many messages it affects, and the command
that shows more. Then it shows for each consumer how many messages are open, how old the
oldest waiting one is, and whether a queue serves them; then the outbox, its relays and the
size of the tables. A number after the name of a consumer is its epoch, if that is not 0. With
-o wide names are not cut, and figures not summed up.

Numbers are counted up to a limit: 10000+ is 10000 or more.`,
		Example: statusExamples,
		Args:    cobra.NoArgs,
	}
	cmd.Flags().DurationVar(&every, "watch", 0, "repaint each `interval` until Ctrl-C")
	cmd.Flags().Lookup("watch").NoOptDefVal = "2s"
	cmd.Flags().BoolVar(&exitCode, "exit-code", false, "exit with 1 if something is wrong")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		show := func(ctx context.Context) error { return a.status(ctx, exitCode) }
		if !cmd.Flags().Changed("watch") {
			return a.doEach(func(ctx context.Context, _ []string) error { return show(ctx) })(cmd, args)
		}
		if exitCode {
			return usagef("--watch goes on until Ctrl-C: leave --exit-code out, or --watch")
		}
		if every < 100*time.Millisecond {
			return usagef("--watch %v is less than 100ms", every)
		}
		watch := func(ctx context.Context, _ []string) error {
			return a.watch(ctx, every, func(ctx context.Context) error {
				return a.each(ctx, func(ctx context.Context) error { return a.inTime(ctx, show) })
			})
		}
		return a.limited(watch, never, a.one)(cmd, args)
	}
	return cmd
}

// errLate says that a database did not answer before a page was due.
var errLate = errors.New("the database did not answer within")

// inTime is show within --timeout, which bounds each page of a watch: what a database that hangs has shown before is past.
func (a *app) inTime(ctx context.Context, show func(context.Context) error) error {
	page, cancel := context.WithTimeout(ctx, a.flags.timeout)
	defer cancel()
	err := show(page)
	if err != nil && page.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("%w %v", errLate, a.flags.timeout)
	}
	return err
}

// watch repeats show until the user interrupts it. Only an error of the first page ends it: later, the database may come back.
func (a *app) watch(ctx context.Context, every time.Duration, show func(context.Context) error) error {
	out := a.out
	defer func() { a.out = out }()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for first := true; ; first = false {
		page := &page{}
		a.out = page
		err := show(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // that is how it ends
		}
		if err != nil && len(a.named) < 2 {
			if first && !errors.Is(err, errLate) {
				return err
			}
			_ = a.print(map[string]string{"error": spoken(err)}, func() string { return spoken(err) + "\n" }) // cannot fail
		}
		a.out = out
		if a.screen {
			page.repaint(out)
		} else {
			a.printf("%s\n", page.text)
		}
		if a.results.err != nil {
			return nil // nobody sees the next page
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// status is the whole status in JSON.
type status struct {
	Problems  []problem        `json:"problems"`
	Consumers []consumerStatus `json:"consumers"`
	Outbox    outboxStatus     `json:"outbox"`
	Tables    []tableStatus    `json:"tables"`
}

type consumerStatus struct {
	Consumer        string  `json:"consumer"`
	Epoch           int     `json:"epoch"`
	Queue           string  `json:"queue"`
	Due             count   `json:"due"`
	Waiting         count   `json:"waiting"`
	Taken           count   `json:"taken"`
	InProgress      count   `json:"in_progress"`
	Stale           count   `json:"stale"`
	Settling        count   `json:"settling"`
	Failed          count   `json:"failed_terminal"`
	Parked          count   `json:"parked"`
	Held            count   `json:"held"`
	OldestPending   float64 `json:"oldest_pending_seconds"`
	Unsettled       count   `json:"unsettled_outcomes"`
	OldestUnsettled float64 `json:"oldest_unsettled_seconds"`
}

func consumersOf(backlog []admin.Backlog) []consumerStatus {
	all := []consumerStatus{}
	for _, b := range backlog {
		all = append(all, consumerStatus{
			Consumer: b.Consumer, Epoch: b.Epoch, Queue: queueOf(b),
			Due: countOf(b.Due), Waiting: countOf(b.Waiting), Taken: countOf(b.Taken),
			InProgress: countOf(b.InProgress), Stale: countOf(b.Stale), Settling: countOf(b.Settling),
			Failed: countOf(b.FailedTerminal), Parked: countOf(b.Parked), Held: countOf(b.Held),
			OldestPending: seconds(b.OldestPending), Unsettled: countOf(b.Unsettled),
			OldestUnsettled: seconds(b.OldestUnsettled),
		})
	}
	return all
}

// queueOf says who delivers the stored messages of a consumer.
func queueOf(b admin.Backlog) string {
	switch {
	case b.Paused:
		return "paused"
	case b.Served:
		return "served"
	}
	return "none"
}

func (a *app) status(ctx context.Context, exitCode bool) error {
	store, err := a.store(ctx)
	if err != nil {
		return err
	}
	of := problems.Service{Store: store}
	if of.Backlogs, err = admin.New(store).Backlog(ctx, admin.BacklogOptions{}); err != nil {
		return err
	}
	out, err := a.publisher(ctx)
	if err != nil {
		return err
	}
	if of.Outbox, err = problems.LookAt(ctx, out); err != nil {
		return err
	}
	found, err := problems.Find(ctx, of)
	if err != nil {
		return err
	}
	s := status{Problems: a.problemsOf(ctx, store, found), Consumers: consumersOf(of.Backlogs), Outbox: outboxStatusOf(of.Outbox)}
	if s.Tables, err = tablesOf(ctx, store); err != nil {
		return err
	}
	err = a.print(s, func() string {
		return a.problemsText(s.Problems) + a.consumersTable(of.Backlogs) + s.Outbox.text() + tablesTable(s.Tables)
	})
	switch {
	case err != nil:
		return err
	case of.Outbox.Err != nil:
		return of.Outbox.Err
	case exitCode && len(found) > 0:
		return &silent{exitFailed}
	}
	return nil
}

// screenWidth is how many columns the status takes at most.
const screenWidth = 80

func (a *app) consumersTable(backlog []admin.Backlog) string {
	if len(backlog) == 0 {
		return "No consumer has handled a message yet.\n"
	}
	if a.flags.output == "wide" {
		return a.wideTable(backlog)
	}
	const shortest = 4
	longest := shortest
	for _, b := range backlog {
		longest = max(longest, utf8.RuneCountInString(oneLine(b.Consumer)))
	}
	for width := longest; ; width-- { // of a name
		t := newTable("CONSUMER", "QUEUE", "DUE", "WAITING", "RUNNING", "STUCK", "HELD", "OLDEST", "OUTCOMES")
		t.paint = a.dim
		for _, b := range backlog {
			name := short(b.Consumer, width)
			if b.Epoch > 0 {
				name += fmt.Sprintf(", %d", b.Epoch)
			}
			t.add(name, queueOf(b), b.Due.Plus(b.Stale), b.Waiting, b.Taken.Plus(b.InProgress), b.FailedTerminal.Plus(b.Parked),
				b.Held, age(b.OldestPending), b.Unsettled)
		}
		if t.width() <= screenWidth || width == shortest {
			return t.String()
		}
	}
}

func (a *app) wideTable(backlog []admin.Backlog) string {
	t := newTable("CONSUMER", "EPOCH", "QUEUE", "DUE", "WAITING", "TAKEN", "RUNNING", "STALE", "SETTLING", "FAILED",
		"PARKED", "HELD", "OLDEST", "UNSETTLED", "SINCE")
	t.paint = a.dim
	for _, b := range backlog {
		t.add(b.Consumer, b.Epoch, queueOf(b), b.Due, b.Waiting, b.Taken, b.InProgress, b.Stale, b.Settling,
			b.FailedTerminal, b.Parked, b.Held, age(b.OldestPending), b.Unsettled, age(b.OldestUnsettled))
	}
	return t.String()
}

func age(d time.Duration) string {
	if d == 0 {
		return "-"
	}
	return span(d)
}

// wrapped breaks text, between words if it can, so that no line is longer than width. Lines after the first are indented.
func wrapped(text string, width int) string {
	const indent = "  "
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) <= width {
			line += " " + word
			continue
		}
		if line != "" {
			lines, line = append(lines, line), indent
		}
		line += word
		for runes := []rune(line); len(runes) > width; runes = []rune(line) {
			lines, line = append(lines, string(runes[:width])), indent+string(runes[width:])
		}
	}
	return strings.Join(append(lines, line), "\n")
}
