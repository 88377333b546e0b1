package main

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/problems"
	"github.com/millrace-go/millrace/internal/stored"
)

// problem is something that is wrong, in JSON.
type problem struct {
	Kind     string   `json:"kind"`
	Severity string   `json:"severity"`
	What     string   `json:"what"`
	Consumer string   `json:"consumer,omitempty"`
	Epoch    int      `json:"epoch,omitempty"`
	Group    int64    `json:"group,omitempty,string"`
	Count    *count   `json:"count"`         // null: not known
	Since    *float64 `json:"since_seconds"` // null: not known
	Next     string   `json:"next"`          // the command that shows more

	since time.Duration
}

func (a *app) problemsOf(ctx context.Context, store *inbox.Store, found []problems.Problem) []problem {
	all := []problem{}
	for _, f := range found {
		p := problem{
			Kind: string(f.Kind), Severity: f.Severity().String(), What: a.said(f), Consumer: f.Consumer, Epoch: f.Epoch,
			Group: f.Group, Next: a.next(ctx, store, f), since: f.Since,
		}
		if f.Count.N > 0 {
			n := countOf(f.Count)
			p.Count = &n
		}
		if f.Since > 0 {
			s := seconds(f.Since)
			p.Since = &s
		}
		all = append(all, p)
	}
	return all
}

// said returns what is wrong without secrets. A shape has no digits, so a secret in it would not be recognised.
func (a *app) said(p problems.Problem) string {
	if clean := a.secrets.clean(p.Error); clean != p.Error {
		return strings.TrimSuffix(p.What, stored.Shape(p.Error)) + clean
	}
	return p.What
}

// next returns the command that shows more of a problem, or mends it.
func (a *app) next(ctx context.Context, store *inbox.Store, p problems.Problem) string {
	args := ""
	switch of := " --consumer " + word(p.Consumer); p.Kind {
	case problems.BrokerOut, problems.NoRelay, problems.ShardsUnowned, problems.OutboxLag:
		args = "outbox shards"
	case problems.Unreadable:
		args = "check"
	case problems.StepsInDoubt:
		args = "steps list"
	case problems.OutboxParked:
		args = "outbox list"
	case problems.Cleanup:
		args = "purge"
	case problems.Gap:
		args = "waiting" + of
	case problems.Outcomes:
		args = "redispatch" + of
	case problems.Stuck:
		if p.Group != 0 {
			args = fmt.Sprintf("list --group %d", p.Group)
			break
		}
		args = "list --status " + stateWithoutError(ctx, store, p.Consumer)
		if p.Consumer != "" {
			args += of
		}
	case problems.NotServed, problems.OldPending:
		args = "list" + of
	case problems.Paused:
		args = "resume " + word(p.Consumer) + fmt.Sprintf(" --epoch %d", p.Epoch)
	}
	switch {
	case p.More && p.Kind == problems.Stuck:
		args = "list --groups"
	case p.More:
		args = "status -o wide"
	}
	return "millrace " + a.where() + args
}

// stateWithoutError returns the state of stuck messages of which no error is noted: parked, or failed_terminal, such
// as those without a key. If it cannot be read, the status says so elsewhere.
func stateWithoutError(ctx context.Context, store *inbox.Store, consumer string) string {
	state := admin.Parked
	failed := admin.Filter{Consumer: consumer, Status: admin.FailedTerminal}
	page, err := admin.New(store).SearchBack(ctx, failed, 0, admin.MaxPage, lookAt)
	if err == nil && slices.ContainsFunc(page.Messages, func(m admin.Message) bool { return m.ErrorGroup == 0 }) {
		state = admin.FailedTerminal
	}
	return strings.ToLower(state.String())
}

// where returns the flags that name this database and its tables again.
func (a *app) where() (flags string) {
	add := func(name, value, otherwise string) {
		if value != otherwise {
			flags += "--" + name + " " + word(value) + " "
		}
	}
	add("context", a.flags.context, "")
	if len(a.named) > 1 {
		add("on", a.at.name, "")
	}
	add("schema", a.flags.schema, "")
	add("prefix", a.flags.prefix, dialect.DefaultPrefix)
	add("namespace", a.flags.namespace, "")
	return flags
}

var plainWord = regexp.MustCompile(`^[\w.:/@%+=,-]+$`)

// word returns text as one word of a shell.
func word(text string) string {
	if plainWord.MatchString(text) {
		return text
	}
	return "'" + strings.ReplaceAll(oneLine(text), "'", `'\''`) + "'"
}

// problemsText shows the problems in lines of 80 columns, each with its command below it.
func (a *app) problemsText(all []problem) string {
	if len(all) == 0 {
		return a.good("Nothing is wrong.") + "\n\n"
	}
	const forWhat, most = screenWidth - 2*9, 300
	var b strings.Builder
	fmt.Fprintf(&b, "%-*s%9s%9s\n", forWhat, "PROBLEM", "COUNT", "SINCE")
	for _, p := range all {
		n, since := "-", age(p.since)
		if p.Count != nil {
			n = fmt.Sprint(p.Count.N)
			if p.Count.AtLeast {
				n += "+"
			}
		}
		first, rest, more := strings.Cut(wrapped(short(p.What, most), forWhat), "\n")
		padded := fmt.Sprintf("%-*s", forWhat, first)
		paint := a.bad
		if p.Severity != "error" {
			paint = a.warn
		}
		b.WriteString(paint(padded) + fmt.Sprintf("%9s%9s\n", n, since))
		if more {
			b.WriteString(paint(rest) + "\n")
		}
		b.WriteString("  " + p.Next + "\n")
	}
	return b.String() + "\n"
}
