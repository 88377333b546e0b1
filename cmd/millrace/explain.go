package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/internal/stored"
	"github.com/millrace-go/millrace/outbox"
)

func (a *app) explainCommand() *cobra.Command {
	var handlerTimeout time.Duration
	var payload bool
	var id int64
	cmd := &cobra.Command{
		Use:   "explain [KEY]",
		Short: "The story of one message: what happened to it, and why",
		Long: `Tells for each consumer and epoch when the message was seen and handled, why copies of it
were dropped or parked, what it produced and where that is now, and what operators did.

KEY is the message's key, which is its UUID unless the consumer has another Key, as list
prints it. Payloads and results are shown with --payload and --reason only. Copies
that were dropped are known only if the service sets Config.LogDropped. explain looks in the
outbox for what the handler stored within the time that a handler may take. It does not
find messages that were sent if relays keep none (RelayConfig.Retention).`,
		Example: "  millrace explain 0190b7a4-4d3c-7bd2-8e0c-2b54f6a3c1de\n  millrace explain --id 1207\n  millrace explain order-17 --json",
		Args:    cobra.MaximumNArgs(1),
	}
	cmd.Flags().DurationVar(&handlerTimeout, "handler-timeout", 25*time.Second, "how long a handler may take (Inbox.Timeout)")
	cmd.Flags().Int64Var(&id, "id", 0, "instead of KEY: the message of this `row`, see millrace list")
	by := a.reveals(cmd, &payload)
	cmd.RunE = a.doEach(func(ctx context.Context, args []string) error {
		reader, err := by.reader(payload)
		if err != nil {
			return err
		}
		store, err := a.store(ctx)
		if err != nil {
			return err
		}
		key := ""
		switch {
		case (len(args) == 0) == (id == 0):
			return usagef("which message? give its key, or its row with --id")
		case id == 0:
			key = keyOf(args[0])
		default:
			m, err := a.row(ctx, store, id)
			if err != nil {
				return err
			}
			key = m.MessageID
		}
		return a.explain(ctx, store, key, handlerTimeout, payload, reader)
	})
	return cmd
}

// chapter is the part of the story that belongs to one consumer and epoch.
type chapter struct {
	Consumer     string        `json:"consumer"`
	Epoch        int           `json:"epoch"`
	State        string        `json:"state"`
	Events       []event       `json:"events"`
	Open         []openMessage `json:"open"`
	Produced     []product     `json:"produced"`
	Notes        []string      `json:"notes"`
	claim        *admin.StoryClaim
	stored       time.Time // when its open row was stored
	history      bool
	redispatched []time.Time
	dropped      int
	droppedCut   bool // the story lacks copies that were dropped earlier
}

// event is a line of a story.
type event struct {
	at     time.Time
	At     *string `json:"at"`
	What   string  `json:"what"`
	Detail string  `json:"detail"`

	// of an attempt that failed, if they are known
	Process string  `json:"process,omitempty"`
	Seconds float64 `json:"seconds,omitempty"`
	TraceID string  `json:"trace_id,omitempty"`
	run     string
}

// product is a message that the handler produced.
type product struct {
	UUID  string `json:"uuid"`
	Topic string `json:"topic"`
	State string `json:"state"`
	Row   int64  `json:"outbox_id,omitempty"`
	Since string `json:"since,omitempty"`
	Error string `json:"error,omitempty"`
}

func (a *app) explain(
	ctx context.Context, store *inbox.Store, key string, handlerTimeout time.Duration, payload bool, reader admin.Operator,
) error {
	story, err := admin.New(store).Outline(ctx, key)
	if err == nil && payload {
		err = revealStory(ctx, store, &story, reader)
	}
	if err != nil {
		return err
	}
	chapters := chaptersOf(story, payload)
	if len(chapters) == 0 {
		return &unknownKey{coded{exitFailed, fmt.Errorf("the inbox knows no message with the key %q: it never came here, or it is older than "+
			"the retention and was purged, or belongs to another namespace (--namespace %q), or its key is not "+
			"what you gave: a consumer may have another Key than the UUID", key, a.flags.namespace)}}
	}
	out, err := a.publisher(ctx)
	if err != nil {
		return err
	}
	for _, c := range chapters {
		if err := c.trace(ctx, out, story.MessageID, handlerTimeout); err != nil {
			return err
		}
	}
	return a.print(map[string]any{"key": key, "consumers": chapters}, func() string { return storyText(key, chapters) })
}

// revealStory adds payloads and results to a story, and records who reads them.
func revealStory(ctx context.Context, store *inbox.Store, story *admin.Story, by admin.Operator) error {
	if err := reveal(ctx, store, story.Open, by); err != nil {
		return err
	}
	for i, c := range story.Claims {
		if c.ResultSize == 0 {
			continue
		}
		result, err := admin.New(store).RevealResult(ctx, c.Consumer, c.Epoch, story.MessageID, by)
		if err != nil && (ctx.Err() != nil || errors.Is(err, inbox.ErrUnavailable)) {
			return err
		}
		story.Claims[i].Result, story.Claims[i].ResultUnreadable = result, err // it may be sealed
	}
	return nil
}

// trace adds the messages that the handler stored in the outbox, and says what cannot be known.
func (c *chapter) trace(ctx context.Context, out *outbox.Publisher, key string, handlerTimeout time.Duration) error {
	switch {
	case c.droppedCut:
		c.Notes = append(c.Notes, fmt.Sprintf("At least %d copies were dropped, of all consumers together: the story has the newest.", stored.MostDropped))
	case c.dropped == 0:
		c.Notes = append(c.Notes, "No copy that was dropped is noted: there was none, or the service runs without Config.LogDropped.")
	}
	if c.claim == nil || !c.claim.Completed || c.claim.Discarded || c.claim.Imported || c.claim.Superseded {
		return nil
	}
	at := c.claim.ProcessedAt
	entries, err := out.CausedBy(ctx, c.Consumer, key, at, at.Add(handlerTimeout))
	for _, at := range c.redispatched {
		if err == nil {
			var later []outbox.Entry
			later, err = out.CausedBy(ctx, c.Consumer, key, at, at)
			entries = append(entries, later...)
		}
	}
	if err != nil {
		return err
	}
	seen := make(map[int64]bool) // two of the times may be close to each other
	for _, e := range entries {
		if seen[e.ID] {
			continue
		}
		seen[e.ID] = true
		p := product{UUID: e.UUID, Topic: e.Topic, State: e.State.String(), Row: e.ID, Error: e.Error}
		if !e.SentAt.IsZero() {
			p.Since = stamp(e.SentAt)
		}
		c.Produced = append(c.Produced, p)
	}
	if len(c.Produced) == 0 {
		c.Notes = append(c.Notes, "It produced nothing that is still here: nothing was stored in the outbox, or it was sent and relays keep "+
			"nothing (RelayConfig.Retention); and what it returned, if anything, is known to be published.")
	}
	return nil
}
