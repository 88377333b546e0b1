package dashboard

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/millrace-go/millrace/inbox/admin"
)

// messagePage is one message: where it stands with each consumer, and its story.
type messagePage struct {
	Key      string
	Rows     []openRow
	Claims   []closedRow
	Timeline []event
	Produced []produced
}

// openRow is a message that is stored and open.
type openRow struct {
	admin.Message
	Headers   []header
	CanRetry  bool
	CanDrop   bool
	Served    bool
	Back      bool // a retry sends it back to its topic
	Body      *body
	Collision bool
}

// closedRow is what a consumer that is done with the message said of it.
type closedRow struct {
	admin.StoryClaim
	Size string // of the result, "" where there is none
	Body *body
}

// revealed is what is shown of a message once somebody has asked for it.
type revealed struct {
	message *admin.Message
	of      consumerOf
	result  []byte
}

type header struct{ Name, Value string }

// event is an entry of a timeline.
type event struct {
	At       time.Time // zero: now
	Consumer string
	Epoch    int
	What     string
	Detail   string
	Tone     string
}

// produced is a message that a handler made of this one.
type produced struct {
	Consumer string
	Topic    string
	UUID     string
	State    string
	Error    string
	At       time.Time
}

func (h *Handler) message(v *visit) (any, error) {
	return h.messagePage(v, v.query("key"), revealed{})
}

// messagePage tells of the message with this key. The payload of one row may be revealed, or
// the result that one consumer has.
func (h *Handler) messagePage(v *visit, key string, seen revealed) (*messagePage, error) {
	if key == "" {
		return nil, problem{http.StatusBadRequest, "Which message? The address names no key."}
	}
	story, err := h.ops.Outline(v.r.Context(), key)
	if err != nil {
		return nil, err
	}
	p := &messagePage{Key: key}
	served, err := h.served(v)
	if err != nil {
		return nil, err
	}
	for _, m := range story.Open {
		row := openRow{Message: m, Headers: headers(m.Metadata), Collision: m.Original != "" && m.Original == key}
		row.Served = served[consumerOf{m.Consumer, m.Epoch}]
		row.Back = !row.Served && h.config.Redeliver != nil
		row.CanDrop = givenUp(m.Status)
		row.CanRetry = row.CanDrop || m.Status == admin.FailedRetryable && m.LeasedUntil.IsZero()
		if seen.message != nil && seen.message.ID == m.ID {
			shown := readable(seen.message.Payload)
			row.Body = &shown
		}
		p.Rows = append(p.Rows, row)
	}
	for _, c := range story.Claims {
		if c.Completed {
			p.Claims = append(p.Claims, seen.closed(c))
		}
	}
	p.Timeline = timeline(story)
	p.Produced, err = h.producedBy(v, story)
	return p, err
}

func (r revealed) closed(c admin.StoryClaim) closedRow {
	row := closedRow{StoryClaim: c}
	if c.ResultSize > 0 {
		row.Size = size(c.ResultSize)
	}
	if r.result != nil && r.of == (consumerOf{c.Consumer, c.Epoch}) {
		shown := readable(r.result)
		row.Body = &shown
	}
	return row
}

type consumerOf struct {
	name  string
	epoch int
}

// served says of which consumers a queue delivers what is stored.
func (h *Handler) served(v *visit) (map[consumerOf]bool, error) {
	known, err := h.ops.Consumers(v.r.Context())
	if err != nil {
		return nil, err
	}
	served := make(map[consumerOf]bool, len(known))
	for _, k := range known {
		served[consumerOf{k.Name, k.Epoch}] = k.Served
	}
	return served, nil
}

func headers(metadata message.Metadata) []header {
	all := make([]header, 0, len(metadata))
	for _, name := range slices.Sorted(maps.Keys(metadata)) {
		all = append(all, header{name, metadata[name]})
	}
	return all
}

// timeline puts a story into the order of time. What has no time yet stands at its end.
func timeline(story admin.Story) []event {
	var all []event
	for _, m := range story.Open {
		all = append(all, event{At: m.ReceivedAt, Consumer: m.Consumer, Epoch: m.Epoch, What: "stored", Detail: origin(m)}, standing(m))
	}
	for _, c := range story.Claims {
		e := event{At: c.ProcessedAt, Consumer: c.Consumer, Epoch: c.Epoch, What: "handled", Tone: "good"}
		if c.Discarded {
			e.What, e.Tone = "closed without being handled", ""
		}
		if c.Imported {
			e.What = "handled by another system, and imported"
		}
		if c.Journaled {
			e.Detail = "kept whole, in the journal"
		}
		if c.Completed {
			all = append(all, e)
		}
	}
	for _, d := range story.Dropped {
		all = append(all, event{At: d.At, Consumer: d.Consumer, Epoch: d.Epoch, What: "a copy was acked without a run", Detail: d.Reason})
	}
	for _, a := range story.Audit {
		all = append(all, event{
			At: a.At, Consumer: a.Consumer, Epoch: a.Epoch, What: a.Action + " by " + a.Operator.Name, Detail: a.Operator.Reason, Tone: "hand",
		})
	}
	for _, s := range story.Steps {
		all = append(all, stepEvent(s))
	}
	all = append(all, went(story)...)
	slices.SortStableFunc(all, func(a, b event) int {
		if a.At.IsZero() != b.At.IsZero() {
			return cmp.Compare(b.At.Unix(), a.At.Unix())
		}
		return a.At.Compare(b.At)
	})
	return all
}

// went tells of what went wrong with a message, or held it up, and when it was stored where it is not any more.
func went(story admin.Story) (all []event) {
	open := make(map[consumerOf]bool)
	for _, m := range story.Open {
		if m.Original == "" || m.MessageID == story.MessageID { // else it collided with this one
			open[consumerOf{m.Consumer, m.Epoch}] = true
		}
	}
	kept := make(map[consumerOf]bool)
	for _, e := range story.History {
		of := consumerOf{e.Consumer, e.Epoch}
		if !kept[of] && e.Number > 1 {
			what := fmt.Sprintf("it failed, or was put aside, %d times before", e.Number-1)
			all = append(all, event{At: e.At, Consumer: e.Consumer, Epoch: e.Epoch, What: what, Tone: "warn"})
		}
		kept[of] = true
		tone := "warn"
		if givenUp(e.Status) {
			tone = "bad"
		}
		all = append(all, event{At: e.At, Consumer: e.Consumer, Epoch: e.Epoch, What: e.What(), Detail: e.Detail(), Tone: tone})
	}
	for _, c := range story.Claims {
		if of := (consumerOf{c.Consumer, c.Epoch}); kept[of] && !open[of] {
			all = append(all, event{At: c.ReceivedAt, Consumer: c.Consumer, Epoch: c.Epoch, What: "stored", Detail: "until it was closed"})
		}
	}
	return all
}

// stepEvent tells of what the handler did outside of its transaction.
func stepEvent(s admin.StepRecord) event {
	e := event{At: s.EndedAt, Consumer: s.Consumer, Epoch: s.Epoch, What: "step " + s.Name + " is " + s.State.String(), Detail: s.Problem}
	if e.At.IsZero() {
		e.At = s.StartedAt
	}
	switch s.State {
	case admin.StepDone:
		e.Tone = "good"
	case admin.StepInDoubt:
		e.Tone = "bad"
	case admin.StepNotDone:
		e.Tone = "warn"
	case admin.StepRunning:
	}
	return e
}

func origin(m admin.Message) string {
	if m.Topic == "" {
		return "it came without a topic"
	}
	return "from topic " + m.Position.String()
}

// standing says how it is with an open message now.
func standing(m admin.Message) event {
	return event{
		Consumer: m.Consumer, Epoch: m.Epoch, What: "now " + lower(m.Status), Detail: cmp.Or(m.Reason, m.LastError), Tone: tone(m.Status),
	}
}

// longest is how long after its claim, which is when a handler began, its messages are looked
// for.
const longest = 5 * time.Minute

// producedBy lists what the handlers of a message made, where it can still be told.
func (h *Handler) producedBy(v *visit, story admin.Story) (all []produced, err error) {
	for _, c := range story.Claims {
		for _, m := range c.Outcome {
			all = append(all, produced{Consumer: c.Consumer, Topic: c.Topic, UUID: m.UUID, State: "kept until the broker has it", At: c.ProcessedAt})
		}
		if h.config.Outbox == nil || !c.Completed || c.Discarded {
			continue
		}
		entries, err := h.config.Outbox.CausedBy(v.r.Context(), c.Consumer, story.MessageID, c.ProcessedAt, c.ProcessedAt.Add(longest))
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			all = append(all, produced{Consumer: c.Consumer, Topic: e.Topic, UUID: e.UUID, State: lower(e.State), Error: e.Error, At: e.StoredAt})
		}
	}
	return all, nil
}
