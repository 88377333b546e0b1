package main

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/outbox"
)

func (a *app) outboxCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "outbox",
		Short: "Show and change parked messages of the outbox, and list the relays",
		Long: `Shows, retries and discards parked messages of the outbox: relays do not try them again, and
messages of the same order key may wait behind them. It also shows which relay has which shard.`,
		Example: "  millrace outbox list\n  millrace outbox retry 17 --reason 'the exchange is there now' --yes\n  millrace outbox shards",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unknown command %q for %q", args[0], cmd.CommandPath())
			}
			return cmd.Help()
		},
	}
	cmd.AddCommand(a.outboxListCommand(), a.outboxRetryCommand(), a.outboxDiscardCommand(), a.outboxShardsCommand())
	return cmd
}

// parkedMessage is a parked message in JSON.
type parkedMessage struct {
	ID       int64             `json:"id"`
	UUID     string            `json:"uuid"`
	Topic    string            `json:"topic"`
	OrderKey string            `json:"order_key,omitempty"`
	Attempts int               `json:"attempts"`
	Parked   *string           `json:"parked_at"`
	Error    string            `json:"error"`
	Metadata map[string]string `json:"metadata"`

	Unreadable string `json:"unreadable,omitempty"`
	shownPayload
}

func (a *app) outboxListCommand() *cobra.Command {
	var limit int
	var after int64
	var topic string
	var payload bool
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "Parked messages, in the order in which they were stored",
		Example: "  millrace outbox list --topic invoices\n  millrace outbox list --after 1200 --limit 200 --json",
		Args:    cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.IntVar(&limit, "limit", 50, "at most so many `messages`, up to 1000")
	flags.Int64Var(&after, "after", 0, "those after the one with this `id`")
	flags.StringVar(&topic, "topic", "", "to this `topic`")
	by := a.reveals(cmd, &payload)
	cmd.RunE = a.doEach(func(ctx context.Context, _ []string) error {
		reader, err := by.reader(payload)
		if err != nil {
			return err
		}
		if limit < 1 || limit > mostParked {
			return usagef("--limit %d is not between 1 and %d", limit, mostParked)
		}
		out, err := a.publisher(ctx)
		if err != nil {
			return err
		}
		all := []parkedMessage{}
		for p, err := range parkedTo(ctx, out.ListParked, mostParked, topic, after) {
			if err != nil {
				return err
			}
			m := parkedMessageOf(p)
			if payload {
				if err := m.reveal(ctx, out, outbox.Operator(reader)); err != nil {
					return err
				}
			}
			if all = append(all, m); len(all) == limit {
				break
			}
		}
		return a.printParked(all, limit)
	})
	return cmd
}

func parkedMessageOf(p outbox.Parked) parkedMessage {
	return parkedMessage{
		ID: p.ID, UUID: p.Message.UUID, Topic: p.Topic, OrderKey: p.OrderKey, Attempts: p.Attempts,
		Parked: since(p.At), Error: p.Error, Metadata: p.Message.Metadata,
	}
}

// reveal adds the payload, and records who reads it. A message that is not parked any more has none.
func (m *parkedMessage) reveal(ctx context.Context, out *outbox.Publisher, by outbox.Operator) error {
	whole, err := out.Reveal(ctx, m.ID, by)
	switch {
	case errors.Is(err, outbox.ErrNotFound), errors.Is(err, outbox.ErrWrongState):
		m.Unreadable = "the message was retried or discarded meanwhile"
		return nil
	case err == nil:
		m.shownPayload = payloadOf(whole.Message.Payload)
	}
	return err
}

// mostParked is how many messages are read at once.
const mostParked = 1000

type readParked func(ctx context.Context, after int64, limit int) ([]outbox.Parked, error)

// parkedTo yields the parked messages for a topic, or for all.
func parkedTo(ctx context.Context, read readParked, most int, topic string, after int64) iter.Seq2[outbox.Parked, error] {
	return func(yield func(outbox.Parked, error) bool) {
		for {
			page, err := read(ctx, after, most)
			if err != nil {
				yield(outbox.Parked{}, err)
				return
			}
			for _, p := range page {
				if (topic == "" || p.Topic == topic) && !yield(p, nil) {
					return
				}
			}
			if len(page) < most {
				return
			}
			after = page[len(page)-1].ID
		}
	}
}

func (a *app) printParked(all []parkedMessage, limit int) error {
	var next *int64
	if len(all) == limit {
		next = &all[limit-1].ID
	}
	return a.print(map[string]any{"messages": all, "next": next}, func() string {
		text := parkedTable(all)
		if next != nil {
			text += fmt.Sprintf("There may be more: add --after %d.\n", *next)
		}
		return text
	})
}

func parkedTable(parked []parkedMessage) string {
	const widest = 80
	if len(parked) == 0 {
		return "No message of the outbox is parked.\n"
	}
	t := newTable("ID", "UUID", "TOPIC", "ORDER KEY", "TRIES", "PARKED", "ERROR")
	for _, p := range parked {
		at := "-"
		if p.Parked != nil {
			at = *p.Parked
		}
		t.add(p.ID, p.UUID, p.Topic, orDash(short(p.OrderKey, widest/2)), p.Attempts, at, orDash(short(p.Error, widest)))
	}
	text := t.String()
	for _, p := range parked {
		if p.Unreadable != "" {
			text += fmt.Sprintf("payload of %d: %s\n", p.ID, p.Unreadable)
		}
		if line, shown := p.line(); shown {
			text += fmt.Sprintf("payload of %d: %s\n", p.ID, line)
		}
	}
	return text
}

func (a *app) outboxShardsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "shards",
		Short:   "Which relay has which shard of the order keys",
		Example: "  millrace outbox shards",
		Args:    cobra.NoArgs,
	}
	cmd.RunE = a.doEach(func(ctx context.Context, _ []string) error {
		out, err := a.publisher(ctx)
		if err != nil {
			return err
		}
		layout, err := out.Shards(ctx)
		if err != nil {
			return err
		}
		shards := []map[string]any{}
		for _, s := range layout.Shards {
			shards = append(shards, map[string]any{"shard": s.Number, "relay": s.Relay, "alive": s.Alive})
		}
		all := map[string]any{"shards": shards, "relays": relaysOf(layout)}
		return a.print(all, func() string { return layoutText(layout) })
	})
	return cmd
}

func layoutText(l outbox.Layout) string {
	if len(l.Shards) == 0 {
		return "No relay has run yet.\n"
	}
	shards := newTable("SHARD", "RELAY")
	for _, s := range l.Shards {
		owner := s.Relay
		switch {
		case s.Owner == 0:
			owner = "none: no relay sends its messages"
		case !s.Alive:
			owner = "gone: the next relay takes it over"
		}
		shards.add(s.Number, owner)
	}
	return relaysTable(l) + "\n" + shards.String()
}

func relaysTable(l outbox.Layout) string {
	relays := newTable("RELAY", "SHARDS", "STATE", "STARTED")
	for _, r := range l.Relays {
		state := "alive"
		if !r.Alive {
			state = "lapsed " + span(l.At.Sub(r.Until)) + " ago"
		}
		relays.add(r.Name, r.Shards, state, stamp(r.StartedAt))
	}
	return relays.String() + brokerText(relaysOf(l))
}
