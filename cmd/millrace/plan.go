package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
)

type consumerEpoch struct {
	name  string
	epoch int
}

// servedConsumers returns the consumers that a queue serves.
func servedConsumers(ctx context.Context, store *inbox.Store) (map[consumerEpoch]bool, error) {
	consumers, err := admin.New(store).Consumers(ctx)
	served := make(map[consumerEpoch]bool)
	for _, c := range consumers {
		served[consumerEpoch{c.Name, c.Epoch}] = c.Served
	}
	return served, err
}

// take adds a message to the count of its consumer.
func (p *plan) take(m admin.Message, served map[consumerEpoch]bool) {
	i := slices.IndexFunc(p.takes, func(t admin.Preview) bool { return t.Consumer == m.Consumer && t.Epoch == m.Epoch })
	if i < 0 {
		i = len(p.takes)
		p.takes = append(p.takes, admin.Preview{
			Consumer: m.Consumer, Epoch: m.Epoch, Served: served[consumerEpoch{m.Consumer, m.Epoch}],
		})
	}
	p.takes[i].Messages.N++
}

// propose shows what the action would do, and what the call still needs.
func (act *action) propose(p *plan, missing string) error {
	shown := act.print(act.proposal(p), func() string { return act.proposalText(p) })
	if shown != nil {
		return shown
	}
	if err := act.deliverable(p); err != nil {
		act.notef("It would fail: %v\n", err)
		missing = "--through-outbox " + missing
	}
	act.unchanged("changed", missing)
	return &silent{exitUsage}
}

func (act *action) proposal(p *plan) map[string]any {
	takes := []map[string]any{}
	for _, t := range p.takes {
		takes = append(takes, map[string]any{
			"consumer": t.Consumer, "epoch": t.Epoch, "served": t.Served, "messages": countOf(t.Messages),
		})
	}
	first := messagesOf(p.messages, 0, false).Messages
	return map[string]any{"would": act.name, "messages": countOf(p.total), "consumers": takes, "first": first}
}

func (act *action) proposalText(p *plan) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s:\n\n", messagesIn(p.total), act.doing)
	t := newTable("CONSUMER", "EPOCH", "MESSAGES", "QUEUE")
	for _, take := range p.takes {
		queue := "none"
		if take.Served {
			queue = "served"
		}
		t.add(take.Consumer, take.Epoch, take.Messages, queue)
	}
	b.WriteString(t.String())
	if p.total.AtLeast || p.total.N > len(p.messages) {
		fmt.Fprintf(&b, "\nThe first of them:\n\n%s", messagesTable(p.now, p.messages, false))
	} else {
		fmt.Fprintf(&b, "\n%s", messagesTable(p.now, p.messages, false))
	}
	return b.String()
}

func messagesIn(c admin.Count) string {
	if c.N == 1 && !c.AtLeast {
		return "1 message"
	}
	return c.String() + " messages"
}
