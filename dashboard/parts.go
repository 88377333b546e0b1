package dashboard

import (
	"cmp"
	"fmt"
	"html/template"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/millrace-go/millrace/inbox/admin"
)

// functions are those that templates may call.
var functions = template.FuncMap{
	"act": act, "age": age, "choosable": choosable, "gap": misses, "ago": ago, "asset": func(name string) string { return assetNames[name] },
	"clock": clock, "count": count, "group": identity, "held": func(s admin.Status) bool { return s == admin.Held }, "link": link, "lower": lower, "next": func(version int64) int64 { return version + 1 }, "now": time.Now, "of": inVisit, "percent": percent,
	"pick": pick, "row": rowOf, "rows": rowsOf, "short": short, "show": show, "span": span, "stamp": stamp, "tabs": tabs, "thousands": thousands,
	"tone": tone, "us": microseconds, "utc": utc, "why": why,
}

// tab is an entry of the navigation.
type tab struct{ Tab, Page, Label string }

func tabs(v *visit) []tab {
	if v.All {
		return []tab{{"databases", "", "Databases"}}
	}
	return []tab{
		{"overview", "", "Overview"}, {"inbox", "inbox", "Inbox"}, {"failures", "failures", "Failures"},
		{"waiting", "waiting", "Waiting"}, {"outbox", "outbox", "Outbox"}, {"consumers", "consumers", "Consumers"},
		{"processes", "processes", "Processes"}, {"audit", "audit", "Audit"}, {"check", "check", "Check"},
	}
}

// form asks for the reason of an action.
type form struct {
	ID     string // unique on the page
	Action string
	Label  string
	Tone   string
	Hint   string
	Where  string // in which system
	Fields []header
}

// act returns a form about a row. It also carries pairs.
func act(v *visit, row any, action, label, tone, hint string, pairs ...any) form {
	f := form{ID: fmt.Sprint("why-", action, "-", row), Action: action, Label: label, Tone: tone, Hint: hint, Where: v.Where()}
	f.Fields = append(fields("id", row), fields(pairs...)...)
	return f
}

// fields returns the hidden fields of a form. They are encoded as in an address, because browsers change line ends and
// bytes that are not text.
func fields(pairs ...any) (all []header) {
	for i := 0; i+1 < len(pairs); i += 2 {
		all = append(all, header{fmt.Sprint(pairs[i]), url.PathEscape(fmt.Sprint(pairs[i+1]))})
	}
	return all
}

// inVisit gives a part of a page the visit besides its own subject.
func inVisit(v *visit, it any) any {
	return struct {
		Visit *visit
		It    any
	}{v, it}
}

// messageRows is a list of messages.
type messageRows struct {
	Visit    *visit
	Messages []admin.Message
	Pick     string   // the form for those that are chosen, "" if none can be
	Stored   *heading // nil if the list has but one order
}

// rowsOf returns a list of messages, of which an operator may choose some.
func rowsOf(v *visit, all []admin.Message, stored *heading) messageRows {
	rows := messageRows{Visit: v, Messages: all, Stored: stored}
	if v.Acting && stored != nil && slices.ContainsFunc(all, choosable) {
		rows.Pick = "pick-messages-retry"
	}
	return rows
}

// choosable reports whether something can be done about a message in a list.
func choosable(m admin.Message) bool { return m.Status.Retryable() && m.LeasedUntil.IsZero() }

// givenUp reports whether messages in a state wait for an operator.
func givenUp(s admin.Status) bool { return s == admin.Parked || s == admin.FailedTerminal }

// tone returns the class of a state; states that need an operator stand out.
func tone(s admin.Status) string {
	switch s {
	case admin.Parked, admin.FailedTerminal:
		return "bad"
	case admin.FailedRetryable, admin.Held:
		return "warn"
	}
	return ""
}

// why says why a message has its state.
func why(m admin.Message) string {
	if m.MessageID == "" && m.Unreadable != nil {
		return m.Unreadable.Error()
	}
	return cmp.Or(m.LastError, m.Reason)
}

// percent returns n as a percentage of all, for a width.
func percent(n, all int) int { return max(1, n*100/max(1, all)) }

func identity(group int64) string { return strconv.FormatInt(group, 10) }
