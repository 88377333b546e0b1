package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/internal/stored"
)

// chaptersOf splits a story by consumer and epoch, and sorts it by time.
func chaptersOf(story admin.Story, payload bool) []*chapter {
	var chapters []*chapter
	of := func(consumer string, epoch int) *chapter {
		for _, c := range chapters {
			if c.Consumer == consumer && c.Epoch == epoch {
				return c
			}
		}
		c := &chapter{Consumer: consumer, Epoch: epoch, State: "unknown", Open: []openMessage{}, Produced: []product{}, Notes: []string{}}
		chapters = append(chapters, c)
		return c
	}
	for _, claim := range story.Claims {
		of(claim.Consumer, claim.Epoch).claimed(claim)
	}
	collisions := 0
	for _, m := range story.Open {
		of(m.Consumer, m.Epoch).opened(m, story.MessageID, payload)
		if collided(m, story.MessageID) {
			collisions++
		}
	}
	for _, d := range story.Dropped {
		c := of(d.Consumer, d.Epoch)
		c.dropped++
		c.add(d.At, "dropped", fmt.Sprintf("a copy%s: %s", fromTopic(d.Topic), d.Reason))
	}
	for _, o := range story.Audit {
		if c := of(o.Consumer, o.Epoch); o.Action == "redispatch" {
			c.redispatched = append(c.redispatched, o.At)
		}
		of(o.Consumer, o.Epoch).add(o.At, o.Action, fmt.Sprintf("by %s, because %q: %s", o.Operator.Name, o.Operator.Reason, o.Detail))
	}
	for _, s := range story.Steps {
		of(s.Consumer, s.Epoch).stepped(s)
	}
	for _, e := range story.History {
		of(e.Consumer, e.Epoch).went(e)
	}
	for _, c := range chapters {
		c.droppedCut = len(story.Dropped) >= stored.MostDropped
		if collisions >= stored.MostCollisions {
			c.Notes = append(c.Notes, fmt.Sprintf("At least %d messages collided with this one, of all consumers together: the story has %[1]d of them.",
				stored.MostCollisions))
		}
		c.first()
		slices.SortStableFunc(c.Events, func(a, b event) int { return a.at.Compare(b.at) })
	}
	slices.SortFunc(chapters, func(a, b *chapter) int {
		return cmp.Or(cmp.Compare(a.Consumer, b.Consumer), cmp.Compare(a.Epoch, b.Epoch))
	})
	return chapters
}

func (c *chapter) add(at time.Time, what, detail string) {
	c.Events = append(c.Events, event{at: at, At: since(at), What: what, Detail: detail})
}

func fromTopic(topic string) string {
	if topic == "" {
		return ""
	}
	return fmt.Sprintf(" from topic %q", topic)
}

// claimed adds the copy that was handled.
func (c *chapter) claimed(claim admin.StoryClaim) {
	c.claim = &claim
	switch {
	case claim.Discarded:
		c.State = "discarded by an operator"
		c.add(claim.ProcessedAt, "closed", "for good, without its handler")
	case claim.Imported:
		c.State = "handled by another system"
		c.add(claim.ProcessedAt, "imported", "another system handled it then: a copy is dropped, whatever its payload")
	case claim.Superseded:
		c.State = "superseded by a newer epoch"
		c.add(claim.ProcessedAt, "superseded", "a newer epoch has the message, maybe under another key: what became of it is told there")
	case claim.Completed:
		c.State = "handled"
		c.add(claim.ProcessedAt, "handled", "this copy won: its effects are committed with the claim")
	default:
		c.State = "open"
	}
	if claim.Journaled {
		c.add(claim.ProcessedAt, "kept", "whole, in the journal, as it was received at "+stamp(claim.ReceivedAt))
	}
	switch {
	case claim.Result != nil:
		c.add(claim.ProcessedAt, "result", string(claim.Result))
	case claim.ResultUnreadable != nil:
		c.add(claim.ProcessedAt, "result", fmt.Sprintf("%d bytes, which cannot be shown: %s", claim.ResultSize, spoken(claim.ResultUnreadable)))
	case claim.ResultSize > 0:
		c.add(claim.ProcessedAt, "result", fmt.Sprintf("%d bytes, which --payload shows", claim.ResultSize))
	}
	if claim.OutcomeUnreadable != nil {
		c.Notes = append(c.Notes, fmt.Sprintf("What it returned cannot be read, so nobody publishes it: %v", claim.OutcomeUnreadable))
	}
	if len(claim.Outcome) > 0 {
		c.Notes = append(c.Notes, "If the source does not deliver it again, millrace redispatch sends what it returned.")
	}
	for _, m := range claim.Outcome {
		c.Produced = append(c.Produced, product{
			UUID: m.UUID, Topic: claim.Topic, State: "RETURNED, not known to be published",
		})
	}
}

// went adds an event that made the message fail or wait.
func (c *chapter) went(e admin.HistoryEntry) {
	if !c.history && e.Number > 1 {
		c.Notes = append(c.Notes, fmt.Sprintf("It failed or was parked %d times before the first entry that is kept.", e.Number-1))
	}
	c.history = true
	c.Events = append(c.Events, event{
		at: e.At, At: since(e.At), What: e.What(), Detail: e.Detail(),
		Process: e.Process, Seconds: e.Took.Seconds(), TraceID: e.TraceID, run: e.Run(),
	})
}

// first adds when the message was stored, if its row is gone or was stored anew.
func (c *chapter) first() {
	if c.claim == nil || !c.history || !c.stored.IsZero() && !c.claim.ReceivedAt.Before(c.stored) {
		return
	}
	c.Events = slices.Insert(c.Events, 0, event{
		at: c.claim.ReceivedAt, At: since(c.claim.ReceivedAt), What: "stored", Detail: "whole, until it was closed",
	})
}

// stepped adds a step that the handler did outside its transaction.
func (c *chapter) stepped(s admin.StepRecord) {
	if c.claim == nil && c.State == "unknown" {
		c.State = "no message of the inbox, but steps"
	}
	at, detail := s.EndedAt, fmt.Sprintf("%q is %s after %s", s.Name, s.State, times(s.Attempts))
	if s.Verified {
		detail += ", as somebody found out afterwards"
	}
	if at.IsZero() {
		at = s.StartedAt
	}
	if s.State == admin.StepInDoubt {
		detail += "; its id is " + s.ID
	}
	if s.Problem != "" {
		detail += ": " + s.Problem
	}
	c.add(at, "step", detail)
}

// opened adds an open row: of the message, or of one that collided with it.
func (c *chapter) opened(m admin.Message, key string, payload bool) {
	c.Open = append(c.Open, openMessageOf(m, payload))
	if collided(m, key) {
		c.add(m.ReceivedAt, "collided", fmt.Sprintf("a message%s with the same key and another payload is %s as row %d: %s",
			fromTopic(m.Position.String()), m.Status, m.ID, why(m)))
		return
	}
	c.State = m.Status.String()
	c.stored = m.ReceivedAt
	c.add(m.ReceivedAt, "stored", fmt.Sprintf("whole, as row %d%s%s", m.ID, fromTopic(m.Position.String()), originOf(m)))
	detail := m.Status.String()
	if m.Attempts > 0 {
		detail += fmt.Sprintf(" after %s", times(m.Attempts))
	}
	if reason := why(m); reason != "" {
		detail += ": " + reason
	}
	switch {
	case !m.LeasedUntil.IsZero():
		detail += "; leased by a process until " + stamp(m.LeasedUntil)
	case !m.DueAt.IsZero() && m.Status == admin.Held:
		detail += "; parked at " + stamp(m.DueAt) + " unless its predecessor comes"
	case !m.DueAt.IsZero():
		detail += "; due at " + stamp(m.DueAt)
	}
	c.Events = append(c.Events, event{at: distant, What: "now", Detail: detail})
}

// collided reports whether m has the key, but not the payload, of another message.
func collided(m admin.Message, key string) bool { return m.Original != "" && m.MessageID != key }

// originOf names the ids that connect the message to its causes.
func originOf(m admin.Message) (text string) {
	if m.CorrelationID != "" {
		text = fmt.Sprintf("; correlation id %q", m.CorrelationID)
	}
	if m.CausationID != "" {
		text += fmt.Sprintf("; causation id %q", m.CausationID)
	}
	return text
}

// distant is later than every event.
var distant = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

func times(n int) string {
	if n == 1 {
		return "1 attempt"
	}
	return fmt.Sprintf("%d attempts", n)
}

func storyText(key string, chapters []*chapter) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Message %s, first seen at %s\n", keyText(key), stamp(firstSeen(chapters)))
	for _, c := range chapters {
		fmt.Fprintf(&b, "\n%s%s: %s\n", oneLine(c.Consumer), epochOf(c.Epoch), c.State)
		for _, e := range c.Events {
			at := "now"
			what := e.What
			if e.At != nil {
				at = *e.At
			} else {
				what = ""
			}
			fmt.Fprintf(&b, "  %-24s  %-9s %s\n", at, oneLine(what), oneLine(e.Detail))
			if e.run != "" {
				fmt.Fprintf(&b, "%38sran %s\n", "", oneLine(e.run))
			}
			if e.TraceID != "" {
				fmt.Fprintf(&b, "%38strace %s\n", "", oneLine(e.TraceID))
			}
		}
		for _, m := range c.Open {
			if line, shown := m.line(); shown {
				fmt.Fprintf(&b, "  payload of row %d: %s\n", m.ID, line)
			}
		}
		if len(c.Produced) > 0 {
			b.WriteString("  produced:\n" + indent(productsTable(c.Produced), "    "))
		}
		for _, note := range c.Notes {
			fmt.Fprintf(&b, "  %s\n", note)
		}
	}
	return b.String()
}

// firstSeen returns the time of the first recorded event.
func firstSeen(chapters []*chapter) time.Time {
	first := distant
	for _, c := range chapters {
		for _, e := range c.Events {
			if e.at.Before(first) {
				first = e.at
			}
		}
	}
	return first
}

func productsTable(products []product) string {
	const widest = 60
	t := newTable("UUID", "TOPIC", "STATE", "SINCE", "ERROR")
	for _, p := range products {
		state := p.State
		if p.Row > 0 {
			state += fmt.Sprintf(" (outbox %d)", p.Row)
		}
		t.add(p.UUID, p.Topic, state, orDash(p.Since), orDash(short(p.Error, widest)))
	}
	return t.String()
}

func indent(text, by string) string {
	return by + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n"+by) + "\n"
}
