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
	"github.com/millrace-go/millrace/internal/stored"
)

// messagePage shows one message: its state with each consumer, and its story.
type messagePage struct {
	Key      string
	Rows     []openRow
	Claims   []closedRow
	Timeline []event
	Cut      string // how many copies were dropped, if the timeline lacks some
	Crowd    string // how many messages collided with this one, if some are not shown
	Produced []produced
	Lacking  []form // for outcomes that the broker may lack
}

// openRow is an open message.
type openRow struct {
	admin.Message
	Headers   []header
	CanDecide bool
	Replace   bool // its payload may be replaced
	Served    bool
	Back      bool // a retry sends it back to its topic
	Body      *body
	Text      string // the payload, if it was revealed and a form can have it
	Collision bool
}

// closedRow is the claim of a consumer that has closed the message.
type closedRow struct {
	admin.StoryClaim
	Size string // of the result; "" if there is none
	Body *body
}

// revealed is the payload or the result that an operator asked for.
type revealed struct {
	message *admin.Message
	of      consumerOf
	result  []byte
}

type header struct{ Name, Value string }

// event is an entry of a timeline.
type event struct {
	At       time.Time // zero means now
	Consumer string
	Epoch    int
	What     string
	Detail   string
	Tone     string

	// of an attempt that failed, if they are known
	Process string
	Run     string // for how long
	Trace   string
	Link    string // to the trace
}

// produced is a message that a handler published because of this one.
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

// messagePage returns the page of the message with this key. It shows the payload of one row, or the
// result of one consumer, if that was revealed.
func (h *Handler) messagePage(v *visit, key string, seen revealed) (*messagePage, error) {
	if key == "" {
		return nil, problem{http.StatusBadRequest, "Which message? The address names none."}
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
	collisions := 0
	for _, m := range story.Open {
		row := h.openRow(m, served)
		row.Collision = m.Original != "" && m.Original == key
		if seen.message != nil && seen.message.ID == m.ID {
			shown := readable(seen.message.Payload)
			row.Body, row.Text = &shown, writable(seen.message.Payload)
		}
		if row.Collision {
			collisions++
		}
		p.Rows = append(p.Rows, row)
	}
	if collisions >= stored.MostCollisions {
		p.Crowd = thousands(collisions)
	}
	for _, c := range story.Claims {
		if c.Completed {
			p.Claims = append(p.Claims, seen.closed(c))
		}
		if len(c.Outcome) > 0 && h.config.Outbox != nil {
			f := act(v, len(p.Lacking), "outcomes-redispatch", "Redispatch", "", "For what "+show(c.Consumer)+" returned and the broker may lack. "+
				"The next page says what it would do, and asks.")
			f.Fields = append(f.Fields, header{"chosen", rowOf(c.Consumer, c.Epoch, story.MessageID)})
			p.Lacking = append(p.Lacking, f)
		}
	}
	p.Timeline = timeline(story)
	if n := len(story.Dropped); n >= stored.MostDropped {
		p.Cut = thousands(n)
	}
	for i, e := range p.Timeline {
		p.Timeline[i].Link = h.config.traceLink(e.Trace)
	}
	p.Produced, err = h.producedBy(v, story)
	return p, err
}

// openRow returns an open message with what can be done about it.
func (h *Handler) openRow(m admin.Message, served map[consumerOf]bool) openRow {
	row := openRow{Message: m, Headers: headers(m.Metadata), Served: served[consumerOf{m.Consumer, m.Epoch}]}
	row.Back = !row.Served && h.config.Redeliver != nil
	row.CanDecide = choosable(m)
	row.Replace = row.CanDecide && h.store.Internals().MayReplace()
	return row
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

// served returns the consumers whose stored messages a queue delivers.
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

// timeline returns a story in the order of time. Present states come last.
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
		if c.Superseded {
			e.What, e.Detail, e.Tone = "superseded by a newer epoch", "What became of it is told there, maybe under another key.", ""
		}
		if c.Journaled {
			e.Detail = "kept whole, in the journal"
		}
		if c.Completed {
			all = append(all, e)
		}
	}
	for _, d := range story.Dropped {
		all = append(all, event{At: d.At, Consumer: d.Consumer, Epoch: d.Epoch, What: "a copy was acked, and no handler ran", Detail: d.Reason})
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

// went returns the failures and delays of a message, and when it was stored if it no longer is.
func went(story admin.Story) (all []event) {
	open := make(map[consumerOf]bool)
	for _, m := range story.Open {
		if m.Original == "" || m.MessageID == story.MessageID { // otherwise it collided with this one
			open[consumerOf{m.Consumer, m.Epoch}] = true
		}
	}
	kept := make(map[consumerOf]bool)
	for _, e := range story.History {
		of := consumerOf{e.Consumer, e.Epoch}
		if !kept[of] && e.Number > 1 {
			what := fmt.Sprintf("failed, parked, held or put back %d times before this", e.Number-1)
			all = append(all, event{At: e.At, Consumer: e.Consumer, Epoch: e.Epoch, What: what, Tone: "warn"})
		}
		kept[of] = true
		tone := "warn"
		if givenUp(e.Status) {
			tone = "bad"
		}
		one := event{At: e.At, Consumer: e.Consumer, Epoch: e.Epoch, What: e.What(), Detail: e.Detail(), Tone: tone, Process: e.Process, Trace: e.TraceID}
		e.Process = "" // which has a link of its own
		one.Run = e.Run()
		all = append(all, one)
	}
	for _, c := range story.Claims {
		if of := (consumerOf{c.Consumer, c.Epoch}); kept[of] && !open[of] {
			all = append(all, event{At: c.ReceivedAt, Consumer: c.Consumer, Epoch: c.Epoch, What: "stored", Detail: "until it was closed"})
		}
	}
	return all
}

// stepEvent returns the event of a handler's call outside of its transaction.
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
		return "without a topic"
	}
	return "from topic " + m.Position.String()
}

// standing returns the present state of an open message.
func standing(m admin.Message) event {
	return event{
		Consumer: m.Consumer, Epoch: m.Epoch, What: "now " + lower(m.Status), Detail: cmp.Or(m.Reason, m.LastError), Tone: tone(m.Status),
	}
}

// longest is how long after a claim, which is when its handler began, the messages of the handler
// are searched for.
const longest = 5 * time.Minute

// producedBy lists the messages that the handlers of a message published, as far as they are still stored.
func (h *Handler) producedBy(v *visit, story admin.Story) (all []produced, err error) {
	for _, c := range story.Claims {
		if c.OutcomeUnreadable != nil {
			all = append(all, produced{Consumer: c.Consumer, Topic: c.Topic, State: "cannot be read, so nobody publishes it", Error: c.OutcomeUnreadable.Error(), At: c.ProcessedAt})
		}
		for _, m := range c.Outcome {
			all = append(all, produced{Consumer: c.Consumer, Topic: c.Topic, UUID: m.UUID, State: "stored until the broker confirms it", At: c.ProcessedAt})
		}
		if h.config.Outbox == nil || !c.Completed || c.Discarded || c.Superseded {
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
