package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
)

const listExamples = `  millrace list
  millrace list --status parked --consumer billing --limit 200
  millrace list --topic payments --since 2h
  millrace list --groups
  millrace list --group 3411 --json --payload --reason 'to find the account' | jq -r '.messages[].payload'`

// listing holds the other flags of list.
type listing struct {
	limit   int
	after   int64
	groups  bool
	payload bool
	by      *operators
}

func (a *app) listCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List open messages, or why they fail",
		Long: `Lists messages that are not completed, in the order in which they were stored. The
first column is the row's id, which retry and discard take. Payloads are shown with
--payload and --reason only. If no index serves the filter, list stops after 100,000 messages and says how to
continue; in JSON, "next" is then not null. With --groups it shows groups of failures instead:
errors that differ only in names and numbers form one group.`,
		Example: listExamples,
		Args:    cobra.NoArgs,
	}
	selected := a.selects(cmd)
	var how listing
	flags := cmd.Flags()
	flags.IntVar(&how.limit, "limit", 50, fmt.Sprintf("at most so many `messages`, up to %d", admin.MaxPage))
	flags.Int64Var(&how.after, "after", 0, "those after the row with this `id`")
	flags.BoolVar(&how.groups, "groups", false, "show groups of failures")
	how.by = a.reveals(cmd, &how.payload)
	cmd.RunE = a.doEach(func(ctx context.Context, _ []string) error { return a.list(ctx, selected, how) })
	return cmd
}

func (a *app) list(ctx context.Context, selected *selection, how listing) error {
	f, err := selected.filter(ctx)
	if err != nil {
		return err
	}
	if how.limit < 1 || how.limit > admin.MaxPage {
		return usagef("--limit %d is not between 1 and %d", how.limit, admin.MaxPage)
	}
	reader, err := how.by.reader(how.payload)
	if err != nil {
		return err
	}
	store, err := a.store(ctx)
	if err != nil {
		return err
	}
	if err := a.mustKnow(ctx, store, f); err != nil {
		return err
	}
	if how.groups {
		return a.listGroups(ctx, store, f)
	}
	page, err := admin.New(store).Search(ctx, f, how.after, how.limit, lookAt)
	if err != nil {
		return err
	}
	if how.payload {
		if err := reveal(ctx, store, page.Messages, reader); err != nil {
			return err
		}
	}
	now, err := a.now(ctx)
	if err != nil {
		return err
	}
	return a.print(messagesOf(page.Messages, page.Next, how.payload), func() string { return pageText(now, page, how) })
}

// reveal adds the payloads of messages, and records who reads them. Messages that were handled meanwhile have none.
func reveal(ctx context.Context, store *inbox.Store, messages []admin.Message, by admin.Operator) error {
	for i, m := range messages {
		if unread(m) {
			continue
		}
		whole, err := admin.New(store).Reveal(ctx, m.ID, by)
		if errors.Is(err, inbox.ErrNotFound) {
			messages[i].Unreadable = errors.New("the message was handled meanwhile")
			continue
		}
		if err != nil {
			return err
		}
		messages[i] = whole
	}
	return nil
}

// lookAt is how many rows a list reads at most where no index serves the filter.
const lookAt = 100_000

func pageText(now time.Time, page admin.Page, how listing) string {
	switch {
	case page.Next == 0:
		return messagesTable(now, page.Messages, how.payload)
	case len(page.Messages) == how.limit:
		return messagesTable(now, page.Messages, how.payload) + fmt.Sprintf("There may be more: add --after %d.\n", page.Next)
	}
	looked := fmt.Sprintf("%d messages were read; to go on from there, add --after %d.\n", lookAt, page.Next)
	if len(page.Messages) == 0 {
		return "None matches so far. " + looked
	}
	return messagesTable(now, page.Messages, how.payload) + looked
}

// mustKnow returns an error if f names a consumer that does not exist.
func (a *app) mustKnow(ctx context.Context, store *inbox.Store, f admin.Filter) error {
	if f.Consumer == "" {
		return nil
	}
	consumers, err := admin.New(store).Consumers(ctx)
	if err != nil {
		return err
	}
	return known(consumers, f)
}

// found is a page of messages in JSON.
type found struct {
	Messages []openMessage `json:"messages"`
	Next     *int64        `json:"next"` // for --after; null at the end
}

type openMessage struct {
	ID           int64             `json:"id"`
	Consumer     string            `json:"consumer"`
	Epoch        int               `json:"epoch"`
	Status       string            `json:"status"`
	Key          string            `json:"key"`
	UUID         string            `json:"uuid"`
	Topic        string            `json:"topic"`
	Partition    string            `json:"partition,omitempty"`
	Offset       *int64            `json:"offset,omitempty"`
	EventType    string            `json:"event_type,omitempty"`
	EventVersion string            `json:"event_version,omitempty"`
	Correlation  string            `json:"correlation_id,omitempty"`
	Causation    string            `json:"causation_id,omitempty"`
	OrderKey     string            `json:"order_key,omitempty"`
	Aggregate    string            `json:"aggregate,omitempty"`
	Version      int64             `json:"version,omitempty,string"`
	Attempts     int               `json:"attempts"`
	Received     *string           `json:"received_at"`
	Due          *string           `json:"due_at"`
	Parks        *string           `json:"parks_at,omitempty"` // of a held one, which has no due_at
	LeasedUntil  *string           `json:"leased_until"`
	Reason       string            `json:"reason,omitempty"`
	Error        string            `json:"error,omitempty"`
	Group        int64             `json:"group,omitempty,string"`
	Original     string            `json:"collided_with,omitempty"`
	Metadata     map[string]string `json:"metadata"`
	shownPayload
	Unreadable string `json:"unreadable,omitempty"`
}

func messagesOf(messages []admin.Message, next int64, payload bool) found {
	f := found{Messages: []openMessage{}}
	if next > 0 {
		f.Next = &next
	}
	for _, m := range messages {
		f.Messages = append(f.Messages, openMessageOf(m, payload))
	}
	return f
}

func openMessageOf(m admin.Message, payload bool) openMessage {
	o := openMessage{
		ID: m.ID, Consumer: m.Consumer, Epoch: m.Epoch, Status: m.Status.String(), Key: jsonKey(m.MessageID), UUID: m.UUID,
		Topic: m.Topic, EventType: m.EventType, EventVersion: m.EventVersion,
		Correlation: m.CorrelationID, Causation: m.CausationID, OrderKey: m.OrderKey, Aggregate: jsonKey(m.Aggregate), Version: m.Version,
		Attempts: m.Attempts, Received: since(m.ReceivedAt), Due: since(m.DueAt), LeasedUntil: since(m.LeasedUntil),
		Reason: m.Reason, Error: m.LastError, Group: m.ErrorGroup, Original: m.Original, Metadata: m.Metadata,
	}
	if m.Status == admin.Held {
		o.Due, o.Parks = nil, o.Due
	}
	if m.Position.Partition != "" {
		o.Partition, o.Offset = m.Position.Partition, &m.Position.Offset
	}
	switch {
	case unread(m):
		o.Status, o.Received, o.Unreadable = "", nil, m.Unreadable.Error()
	case payload && m.Unreadable != nil:
		o.Unreadable = m.Unreadable.Error()
	case payload:
		o.shownPayload = payloadOf(m.Payload)
	}
	return o
}

// shownPayload is a payload in JSON, which can hold only text as it is.
type shownPayload struct {
	Payload *string `json:"payload,omitempty"`
	Base64  []byte  `json:"payload_base64,omitempty"` // if it is not text
}

func payloadOf(payload []byte) shownPayload {
	if !utf8.Valid(payload) {
		return shownPayload{Base64: payload}
	}
	text := string(payload)
	return shownPayload{Payload: &text}
}

// line returns the payload for a terminal, and whether to show it.
func (p shownPayload) line() (line string, shown bool) {
	if p.Payload != nil {
		return oneLine(*p.Payload), true
	}
	return oneLine(string(p.Base64)), p.Base64 != nil
}

func messagesTable(now time.Time, messages []admin.Message, payload bool) string {
	const widest = 80
	if len(messages) == 0 {
		return "No open message matches.\n"
	}
	titles := []string{"ID", "CONSUMER", "EPOCH", "STATUS", "KEY", "TOPIC", "TRIES", "AGE", "WHY"}
	correlated := slices.ContainsFunc(messages, func(m admin.Message) bool { return m.CorrelationID != "" })
	if correlated {
		titles = append(titles, "CORRELATION")
	}
	caused := slices.ContainsFunc(messages, func(m admin.Message) bool { return m.CausationID != "" })
	if caused {
		titles = append(titles, "CAUSATION")
	}
	t := newTable(titles...)
	for _, m := range messages {
		cells := []any{
			m.ID, m.Consumer, m.Epoch, m.Status, keyText(m.MessageID), orDash(m.Position.String()), m.Attempts,
			span(now.Sub(m.ReceivedAt)), orDash(short(why(m), widest)),
		}
		if unread(m) {
			cells = []any{m.ID, "-", "-", "-", "-", "-", "-", "-", why(m)}
		}
		if correlated {
			cells = append(cells, orDash(short(m.CorrelationID, widest/2)))
		}
		if caused {
			cells = append(cells, orDash(short(m.CausationID, widest/2)))
		}
		t.add(cells...)
	}
	if !payload {
		return t.String()
	}
	lines := strings.SplitAfter(t.String(), "\n")
	var b strings.Builder
	b.WriteString(lines[0])
	for i, m := range messages {
		b.WriteString(lines[i+1])
		if m.Unreadable != nil {
			fmt.Fprintf(&b, "    the payload cannot be read: %v\n", m.Unreadable)
		} else {
			fmt.Fprintf(&b, "    %s\n", oneLine(string(m.Payload)))
		}
	}
	return b.String()
}

// unread reports whether nothing of the message can be read.
func unread(m admin.Message) bool { return m.MessageID == "" && m.Unreadable != nil }

// why says why the message is open.
func why(m admin.Message) string {
	switch {
	case unread(m):
		return m.Unreadable.Error()
	case m.LastError == "":
		return m.Reason
	case m.Reason == "" || strings.Contains(m.LastError, m.Reason):
		return m.LastError
	}
	return m.Reason + ": " + m.LastError
}
