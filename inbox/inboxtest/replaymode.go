package inboxtest

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace-go/millrace/inbox"
)

// ReplayMode sends all messages again after they were handled, as a replay does: with their ids
// and with [inbox.ReplayField]. One play does so while the inbox remembers them, another after the
// inbox has forgotten them, as in a new epoch. Nothing may happen twice: the ledger must be the
// same, no message may be published under another UUID, and no call may be repeated by
// [Process.External]. A consumer with inbox.ReplayRefuse parks the messages that it has forgotten.
//
// For a service that a replay rebuilds, set [Scenario.Rebuild].
func ReplayMode(t testing.TB, s Scenario) {
	t.Helper()
	stage := newStage(t, s)
	right := stage.rehearse()
	if right == nil {
		return
	}
	remembered := &encore{
		title: "a replay of remembered messages", note: "all messages are replayed",
		inputs: replayed(s.Inputs), before: func(*place) error { return nil },
	}
	forgotten := &encore{
		title: "a replay of forgotten messages", note: "all messages are forgotten and replayed, as in a new epoch",
		inputs: replayed(s.Inputs), before: (*place).beginAnew,
	}
	plans := []plan{{encore: remembered}, {encore: forgotten}}
	failures := make([]string, len(plans))
	for i, p := range plans {
		pl, o, err := stage.play(p)
		problems := []string{fmt.Sprint(err)}
		if err == nil {
			problems = o.afterReplay(&right.outcome, p.encore == forgotten)
		}
		if len(problems) > 0 {
			failures[i] = fmt.Sprintf("  %s\n%s", strings.Join(problems, "\n  "), storyOf(pl))
		}
	}
	stage.report(plans, failures)
}

// replayed returns inputs as a replay sends them.
func replayed(inputs []Input) []Input {
	all := make([]Input, len(inputs))
	for i, in := range inputs {
		msg := in.Message.Copy()
		msg.Metadata.Set(inbox.ReplayField, "inboxtest")
		all[i] = Input{Topic: in.Topic, Message: msg}
	}
	return all
}

// afterReplay returns the effects of a replay that must not happen.
func (o *outcome) afterReplay(right *outcome, refusable bool) []string {
	if refusable {
		o.open = slices.DeleteFunc(o.open, func(text string) bool { return o.refused[text] })
	}
	problems := o.problems
	if !reflect.DeepEqual(o.ledger, right.ledger) {
		problems = append(problems, fmt.Sprintf("after the replay the ledger is\n    %s\n  instead of\n    %s\n  "+
			"set Inbox.OnReplay to inbox.ReplayRefuse, or Scenario.Rebuild if a replay rebuilds it",
			show(o.ledger), show(right.ledger)))
	}
	if again := difference(o.calls, right.calls); len(again) > 0 {
		problems = append(problems, fmt.Sprintf("called again by the replay: %s\n  set Inbox.OnReplay to inbox.ReplayRefuse",
			strings.Join(again, ", ")))
	}
	if again := difference(o.produced, right.produced); len(again) > 0 {
		problems = append(problems, fmt.Sprintf("published again by the replay, under another UUID: %s\n  "+
			"set Inbox.OnReplay to inbox.ReplaySuppress", strings.Join(again, ", ")))
	}
	if again := difference(o.open, right.open); len(again) > 0 {
		problems = append(problems, "left open by the replay: "+strings.Join(again, ", "))
	}
	return problems
}

// calls returns the calls of a play through Process.External, but for those that were cut off: on a busy machine one
// may take longer than its handler has, and is made again, replay or not.
func (pl *play) calls() (all []string) {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	for _, at := range pl.reached {
		if at.kind == external && !pl.timeline[at.line].cutOff {
			all = append(all, at.owner+" "+at.what)
		}
	}
	return all
}

// beginAnew makes every inbox forget all messages, as in a new epoch, and calls Rebuild.
func (p *place) beginAnew() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if p.store != nil {
		if err := p.forget(""); err != nil {
			return err
		}
		prefix := p.scenario.TablePrefix
		for _, statement := range []string{
			`DELETE FROM ` + prefix + `versions`, `DELETE FROM ` + prefix + `leases`, `UPDATE ` + prefix + `consumers SET purge_line = 0`,
		} {
			if _, err := p.plain.ExecContext(ctx, statement); err != nil {
				return fmt.Errorf("begin anew: %w", err)
			}
		}
	}
	if p.scenario.Rebuild == nil {
		return nil
	}
	if err := p.scenario.Rebuild(ctx, p.plain); err != nil {
		return fmt.Errorf("empty the tables to rebuild: %w", err)
	}
	return nil
}
