package dashboard

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/outbox"
)

// choice is an action on the rows that an operator chose in a list.
type choice struct {
	Action string
	Verb   string
	Button string // of the list, if it is not the verb
	Tone   string
	thing  string // of which a row is one
	hint   string
	list   string // the page of the list
	find   func(*Handler, *visit, []string) ([]chosen, error)
	note   func(*Handler, *visit) (string, error) // what an operator must know before; nil for nothing
}

// chosen is a row that an operator chose.
type chosen struct {
	Row   string // in a form
	Name  string
	To    string // its page
	About string
	Why   string // why the action does nothing about it
	do    func(context.Context) error
}

// choices are the actions by their names.
var choices = map[string]choice{
	"messages-retry": {
		Action: "messages-retry", Verb: "Retry", thing: "message", list: "inbox", find: (*Handler).toRetry,
		hint: "They are handled again, with the full number of attempts.",
	},
	"messages-discard": {
		Action: "messages-discard", Verb: "Discard", Tone: "bad", thing: "message", list: "inbox", find: (*Handler).toDiscard,
		hint: "They count as handled, and no handler runs. This cannot be undone.",
	},
	"parked-retry": {
		Action: "parked-retry", Verb: "Retry", thing: "message", list: "outbox", find: (*Handler).parkedToRetry,
		hint: "Relays try again to send them, with the full number of attempts.",
	},
	"parked-discard": {
		Action: "parked-discard", Verb: "Discard", Tone: "bad", thing: "message", list: "outbox", find: (*Handler).parkedToDiscard,
		hint: "They are never sent, and the messages behind them go out. This cannot be undone.",
	},
	"outcomes-redispatch": {
		Action: "outcomes-redispatch", Verb: "Redispatch", thing: "outcome", list: "outbox", find: (*Handler).toRedispatch, note: (*Handler).noteRelays,
		hint: "What the handlers returned is stored in the outbox with the same UUIDs, and a relay sends it. If the source delivers " +
			"a message again at the same time, the broker may get its outcome twice.",
	},
	"gaps-skip": {
		Action: "gaps-skip", Verb: "Skip", Button: "Skip the gap", Tone: "bad", thing: "gap", list: "waiting", find: (*Handler).toSkip,
		hint: "From then on a message that brings a skipped version is acked and never handled. First look whether it is only parked, and " +
			"retry it if it is.",
	},
}

// picker is the form for the rows that are chosen in a list. Their check boxes name it.
type picker struct {
	form
	Buttons []choice
}

// pick returns the form of a list with these actions.
func pick(v *visit, actions ...string) picker {
	p := picker{form: form{ID: "pick-" + actions[0], Where: v.Where()}}
	for _, a := range actions {
		p.Buttons = append(p.Buttons, choices[a])
	}
	return p
}

// rowOf names a row of a list in a form.
func rowOf(parts ...any) string {
	escaped := make([]string, 0, len(parts))
	for _, part := range parts {
		escaped = append(escaped, url.PathEscape(fmt.Sprint(part)))
	}
	return strings.Join(escaped, "/")
}

// partsOf returns what [rowOf] was made of.
func partsOf(row string) ([]string, error) {
	parts := strings.Split(row, "/")
	for i := range parts {
		var err error
		if parts[i], err = url.PathUnescape(parts[i]); err != nil {
			return nil, noRow(row)
		}
	}
	return parts, nil
}

func noRow(row string) error {
	return problem{http.StatusBadRequest, "This is not a row of the list: " + row}
}

// choose carries out an action on chosen rows. First it asks, with a page that says what it would do.
func (h *Handler) choose(v *visit) (answer, error) {
	c, rows := choices[v.path], v.r.PostForm["chosen"]
	switch {
	case len(rows) == 0:
		return answer{}, problem{http.StatusUnprocessableEntity, "None is chosen: tick the boxes of some. Nothing was changed."}
	case len(rows) > pageSize:
		return answer{}, problem{http.StatusBadRequest, fmt.Sprintf("At most %d can be chosen. Nothing was changed.", pageSize)}
	}
	var once []string
	for _, row := range rows {
		if !slices.Contains(once, row) {
			once = append(once, row)
		}
	}
	found, err := c.find(h, v, once)
	switch {
	case err != nil:
		return answer{}, err
	case v.sure():
		return c.carryOut(v.r.Context(), v, found), nil
	}
	return c.ask(h, v, found)
}

// ask returns the page that says what the action would do.
func (c choice) ask(h *Handler, v *visit, found []chosen) (answer, error) {
	q := question{Action: c.Action, Tone: c.Tone, Hint: c.hint, Back: c.list, Rows: found}
	for _, row := range found {
		if row.Why == "" {
			q.Fields = append(q.Fields, header{"chosen", row.Row})
		}
	}
	n := int64(len(q.Fields))
	q.Label = c.Verb + " " + plural(n, c.thing)
	q.Title = q.Label + "?"
	if n == 0 {
		q.Action, q.Title = "", "Nothing can be done about these"
	}
	if c.note == nil {
		return q.asked(v, c.list), nil
	}
	note, err := c.note(h, v)
	q.Lead = []string{note}
	return q.asked(v, c.list), err
}

// carryOut carries out the action on each row. One that fails stops no other, unless the database is out.
func (c choice) carryOut(ctx context.Context, v *visit, found []chosen) answer {
	done, out := int64(0), false
	for i := range found {
		row := &found[i]
		switch {
		case row.Why != "":
			continue
		case out:
			row.Why = "It was not tried, since the one before it could not be done."
			continue
		}
		err := row.do(ctx)
		if err == nil {
			done++
			continue
		}
		row.Why = problemOf(err).text
		out = errors.Is(err, inbox.ErrUnavailable) || errors.Is(err, outbox.ErrUnavailable) || ctx.Err() != nil
	}
	if done == int64(len(found)) {
		return after(c.list, c.Action, "n", strconv.FormatInt(done, 10))
	}
	q := question{Title: fmt.Sprintf("%s of %s done", thousands(done), plural(int64(len(found)), c.thing)), Back: c.list, Rows: found, Over: true}
	return q.asked(v, c.list)
}

// question is a page that says what an action would do, or what came of it. Its form holds all that the action needs.
type question struct {
	Title  string
	Lead   []string
	Rows   []chosen
	Over   bool   // it is done, except for the rows that say why not
	Action string // "" if there is nothing to do
	Label  string
	Tone   string
	Hint   string
	Fields []header
	Reason string
	Back   string // the page that it came from
}

// asked returns the page, which is below a tab.
func (q question) asked(v *visit, tab string) answer {
	q.Reason = v.reason()
	p := page{"question.html", tab, q.Title, func(*visit) (any, error) { return q, nil }}
	return answer{page: &p}
}

// sure reports whether the operator has seen what the action would do.
func (v *visit) sure() bool { return v.r.PostFormValue("sure") == "yes" }
