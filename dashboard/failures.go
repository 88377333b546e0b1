package dashboard

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/millrace-go/millrace/inbox/admin"
)

// groupsKept is how old the groups may be that a page shows while Run reads them again, if that takes longer than quickly.
const (
	groupsKept = 10 * time.Minute
	quickly    = 100 * time.Millisecond
)

// lastGroups returns the groups of lately: finding them reads all failed messages. If that takes long and Run is called, Run reads
// them, and no page waits for that unless an operator has acted.
func (h *Handler) lastGroups(ctx context.Context) (*reading[[]admin.FailureGroup], error) {
	last := h.groups.last.Load()
	if h.samples.runs.Load() == 0 || last == nil || last.took < quickly || time.Since(last.at) > groupsKept || h.groups.stale() {
		return h.readGroups(ctx)
	}
	if last.old(time.Second) {
		h.askForGroups()
	}
	return last, nil
}

// askForGroups has Run read the groups.
func (h *Handler) askForGroups() {
	select {
	case h.regroup <- struct{}{}:
	default: // it was asked
	}
}

func (h *Handler) readGroups(ctx context.Context) (*reading[[]admin.FailureGroup], error) {
	return h.groups.read(ctx, time.Second, func(ctx context.Context) ([]admin.FailureGroup, error) {
		return h.ops.FailureGroups(ctx, admin.Filter{})
	})
}

// failuresPage lists the groups of failures.
type failuresPage struct {
	Groups []admin.FailureGroup
	Most   int  // messages of the largest group
	Cut    bool // not all failed messages were read
	At     time.Time
	Heads  map[string]*heading
}

// groupsBy compares groups by the columns of their list.
var groupsBy = map[string]func(a, b admin.FailureGroup) int{
	"messages": byFigure(func(g admin.FailureGroup) int { return g.Messages }),
	"first":    func(a, b admin.FailureGroup) int { return a.First.Compare(b.First) },
	"last":     func(a, b admin.FailureGroup) int { return a.Last.Compare(b.Last) },
}

func (h *Handler) failures(v *visit) (any, error) {
	by, err := v.ordered(order{"messages", true}, "messages", "first", "last")
	if err != nil {
		return nil, err
	}
	last, err := h.lastGroups(v.r.Context())
	if err != nil {
		return nil, err
	}
	found := last.found
	p := &failuresPage{Groups: slices.Clone(found), At: last.at, Heads: map[string]*heading{}}
	sorted(by, p.Groups, groupsBy)
	p.Groups = p.Groups[:min(len(found), 4*pageSize)]
	for _, g := range found {
		p.Most, p.Cut = max(p.Most, g.Messages), p.Cut || g.AtLeast
	}
	to := func(sort string) string { return link("failures", "sort", sort) }
	p.Heads["messages"] = by.heading(order{"messages", true}, "Messages", "n", to)
	p.Heads["first"] = by.heading(order{"first", false}, "First stored", "wide", to)
	p.Heads["last"] = by.heading(order{"last", true}, "Last stored", "wide", to)
	return p, nil
}

// failurePage shows one group, before an operator decides.
type failurePage struct {
	admin.FailureGroup
	Affected []admin.Preview // what an action would change
	Waiting  admin.Count
	Decided  string          // how many, in words
	Seen     int             // how many, 0 if that is not known exactly
	First    []admin.Message // of them
	Until    time.Time
	Back     bool // some are sent back to their topic
	Lost     bool // some can only be discarded
}

func (h *Handler) failure(v *visit) (any, error) {
	id, err := v.number("group")
	if err != nil {
		return nil, err
	}
	if id == 0 {
		return nil, problem{http.StatusBadRequest, "Which group? The address names none."}
	}
	filter := admin.Filter{ErrorGroup: id}
	found, err := h.ops.FailureGroups(v.r.Context(), filter)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, problem{http.StatusNotFound, "No message fails like this any more: all were handled or discarded."}
	}
	p := &failurePage{FailureGroup: found[0]}
	if p.Until, err = h.store.Internals().Rows().Now(v.r.Context()); err != nil { // the clock that says when messages came
		return nil, err
	}
	p.Until = p.Until.Add(time.Millisecond) // the resolution of SQLite's clock
	if p.Affected, err = h.ops.Preview(v.r.Context(), filter, countTo); err != nil {
		return nil, err
	}
	for _, a := range p.Affected {
		p.Waiting = sum(p.Waiting, a.Messages)
		p.Back = p.Back || !a.Served && h.config.Redeliver != nil
		p.Lost = p.Lost || !a.Served && h.config.Redeliver == nil
	}
	if !p.Waiting.AtLeast {
		p.Seen = p.Waiting.N
	}
	p.Decided = count(p.Waiting) + " messages"
	if p.Waiting.N == 1 {
		p.Decided = "1 message"
	}
	return p, h.addFirst(v, p, filter)
}

// addFirst adds some of the messages: those that wait for an operator, else others.
func (h *Handler) addFirst(v *visit, p *failurePage, f admin.Filter) error {
	const some = 10
	for _, f.Status = range []admin.Status{admin.Parked, admin.FailedTerminal, admin.FailedRetryable} {
		if len(p.First) == some || f.Status == admin.FailedRetryable && len(p.First) > 0 {
			break
		}
		found, err := h.ops.Search(v.r.Context(), f, 0, some-len(p.First), 0)
		if err != nil {
			return err
		}
		p.First = append(p.First, found.Messages...)
	}
	return nil
}

// countTo is where counting the messages of an action stops before it begins.
const countTo = 10_000
