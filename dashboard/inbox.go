package dashboard

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/millrace-go/millrace/inbox/admin"
)

// How many rows a list has at most, and how many it reads if no index serves the filter.
const (
	pageSize = 50
	lookAt   = 10_000
)

// statuses are in the order in which operators need them.
var statuses = []admin.Status{
	admin.Parked, admin.FailedTerminal, admin.FailedRetryable, admin.Held, admin.Received, admin.InProgress, admin.Settling,
}

// inboxPage lists open messages.
type inboxPage struct {
	Filter    filterForm
	Tabs      []statusTab
	Consumers []string
	Messages  []admin.Message
	First     string // address of the first page, if this is another
	Next      string // address of the next page, if there is one
	Looked    string // how many were looked at, where there may be others behind them
	Filtered  bool
	Stored    *heading
}

// filterForm is what the list is narrowed to, as its form has it.
type filterForm struct {
	Status   string
	Consumer string
	Topic    string
	Since    string
	Until    string
	Group    string
	Sort     string
}

type statusTab struct {
	Name    string
	Label   string
	To      string
	Count   admin.Count
	Counted bool
	Current bool
	Urgent  bool
}

func (h *Handler) inbox(v *visit) (any, error) {
	form := filterForm{
		Status: v.query("status"), Consumer: v.query("consumer"), Topic: v.query("topic"),
		Since: v.query("since"), Until: v.query("until"), Group: v.query("group"), Sort: v.query("sort"),
	}
	first := order{column: "stored"}
	by, err := v.ordered(first, "stored")
	if err != nil {
		return nil, err
	}
	filter, err := form.filter()
	if err != nil {
		return nil, err
	}
	behind, err := v.number("after")
	if err != nil {
		return nil, err
	}
	p := &inboxPage{Filter: form, Filtered: form != filterForm{Status: form.Status, Sort: form.Sort}}
	p.Stored = by.heading(first, "Stored", "wide", form.sortedBy)
	search := h.ops.Search
	if by.down {
		search = h.ops.SearchBack
	}
	found, err := search(v.r.Context(), filter, behind, pageSize, lookAt)
	if err != nil {
		return nil, err
	}
	p.Messages = found.Messages
	if found.Next > 0 {
		p.Next = form.link(strconv.FormatInt(found.Next, 10))
	}
	if found.Next > 0 && len(found.Messages) < pageSize {
		p.Looked = thousands(lookAt)
	}
	if behind > 0 {
		p.First = form.link("")
	}
	return p, h.fillTabs(v, p)
}

// fillTabs counts the messages of each state, of the consumer that is chosen.
func (h *Handler) fillTabs(v *visit, p *inboxPage) error {
	taken, err := h.lately(v.r.Context())
	if err != nil {
		return err
	}
	counts := map[admin.Status]admin.Count{}
	add := func(s admin.Status, c ...admin.Count) { counts[s] = sum(append(c, counts[s])...) }
	for _, b := range taken[len(taken)-1].backlogs {
		if len(p.Consumers) == 0 || p.Consumers[len(p.Consumers)-1] != b.Consumer {
			p.Consumers = append(p.Consumers, b.Consumer)
		}
		if p.Filter.Consumer != "" && p.Filter.Consumer != b.Consumer {
			continue
		}
		add(0, open(b), stuck(b), b.Held)
		add(admin.Parked, b.Parked)
		add(admin.FailedTerminal, b.FailedTerminal)
		add(admin.Held, b.Held)
		add(admin.InProgress, b.InProgress, b.Stale)
		add(admin.Settling, b.Settling)
	}
	tab := func(s admin.Status, name, label string) {
		form := p.Filter
		form.Status = name
		number, counted := counts[s]
		p.Tabs = append(p.Tabs, statusTab{
			Name: name, Label: label, To: form.link(""), Count: number, Counted: counted, Current: p.Filter.Status == name,
			Urgent: givenUp(s),
		})
	}
	tab(0, "", "all")
	for _, s := range statuses {
		tab(s, slug(s), lower(s))
	}
	return nil
}

// slug is a state in an address.
func slug(s admin.Status) string { return strings.ToLower(s.String()) }

// link is the address of the list, from the row after on.
func (f filterForm) link(after string) string {
	return link("inbox", "status", f.Status, "consumer", f.Consumer, "topic", f.Topic, "since", f.Since, "until", f.Until,
		"group", f.Group, "sort", f.Sort, "after", after)
}

func (f filterForm) sortedBy(sort string) string {
	f.Sort = sort
	return f.link("")
}

func (f filterForm) filter() (admin.Filter, error) {
	filter := admin.Filter{Consumer: f.Consumer, Topic: f.Topic}
	if f.Status != "" {
		for _, s := range statuses {
			if slug(s) == f.Status {
				filter.Status = s
			}
		}
		if filter.Status == 0 {
			return filter, problem{http.StatusBadRequest, "There is no state named " + f.Status + "."}
		}
	}
	var err error
	if filter.ErrorGroup, err = number(f.Group, "group"); err != nil {
		return filter, err
	}
	if filter.ReceivedSince, err = minute(f.Since); err != nil {
		return filter, err
	}
	filter.ReceivedUntil, err = minute(f.Until)
	return filter, err
}

// minute reads what an <input type=datetime-local> sends, taken for UTC.
func minute(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	for _, layout := range []string{"2006-01-02T15:04", "2006-01-02T15:04:05"} {
		if t, err := time.Parse(layout, text); err == nil {
			return t, nil
		}
	}
	return time.Time{}, problem{http.StatusBadRequest, "This is no date and time: " + text}
}
