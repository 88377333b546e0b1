package dashboard

import (
	"io"
	"slices"
	"strconv"

	"github.com/millrace-go/millrace/inbox/admin"
)

// auditPage lists what operators did.
type auditPage struct {
	Filter    auditForm
	Consumers []string
	Entries   []admin.AuditEntry
	File      string // the address of all that match, as CSV
	First     string
	Next      string
	Looked    string // how many were looked at, where there may be others behind them
	Filtered  bool
}

// auditForm is what the list is narrowed to, as its form has it.
type auditForm struct {
	Consumer string
	Operator string
	Action   string
	Since    string
	Until    string
}

func auditFormOf(v *visit) auditForm {
	return auditForm{
		Consumer: v.query("consumer"), Operator: v.query("operator"), Action: v.query("action"),
		Since: v.query("since"), Until: v.query("until"),
	}
}

func (h *Handler) audit(v *visit) (any, error) {
	form := auditFormOf(v)
	filter, err := form.filter()
	if err != nil {
		return nil, err
	}
	before, err := v.number("before")
	if err != nil {
		return nil, err
	}
	p := &auditPage{Filter: form, Filtered: form != auditForm{}, File: form.linkTo("audit.csv", "")}
	found, err := h.ops.SearchAudit(v.r.Context(), filter, before, pageSize, lookAt)
	if err != nil {
		return nil, err
	}
	p.Entries = found.Entries
	if found.Next > 0 {
		p.Next = form.link(strconv.FormatInt(found.Next, 10))
	}
	if found.Next > 0 && len(found.Entries) < pageSize {
		p.Looked = thousands(lookAt)
	}
	if before > 0 {
		p.First = form.link("")
	}
	consumers, err := h.ops.Consumers(v.r.Context())
	for _, c := range consumers {
		p.Consumers = append(p.Consumers, c.Name)
	}
	for _, e := range p.Entries { // those of leases are known by their entries alone
		if e.Consumer != "" {
			p.Consumers = append(p.Consumers, e.Consumer)
		}
	}
	slices.Sort(p.Consumers)
	p.Consumers = slices.Compact(p.Consumers)
	return p, err
}

// link is the address of the list, from the entry before on.
func (f auditForm) link(before string) string { return f.linkTo("audit", before) }

func (f auditForm) linkTo(page, before string) string {
	return link(page, "consumer", f.Consumer, "operator", f.Operator, "action", f.Action,
		"since", f.Since, "until", f.Until, "before", before)
}

func (f auditForm) filter() (filter admin.AuditFilter, err error) {
	filter.Consumer, filter.Operator, filter.Action = f.Consumer, f.Operator, f.Action
	if filter.Since, err = minute(f.Since); err != nil {
		return filter, err
	}
	filter.Until, err = minute(f.Until)
	return filter, err
}

func (h *Handler) auditFile(v *visit) (func(io.Writer) error, error) {
	filter, err := auditFormOf(v).filter()
	return func(to io.Writer) error { return h.ops.ExportAudit(v.r.Context(), filter, to) }, err
}

// changedPage lists the messages that an action on many has changed.
type changedPage struct {
	Entry    admin.AuditEntry
	Messages []admin.AuditMessage
	File     string
	First    string
	Next     string
}

func (h *Handler) changed(v *visit) (any, error) {
	id, err := v.number("entry")
	if err != nil {
		return nil, err
	}
	after, err := v.number("after")
	if err != nil {
		return nil, err
	}
	of := strconv.FormatInt(id, 10)
	p := &changedPage{File: link("changed.csv", "entry", of)}
	if p.Entry, err = h.ops.AuditEntry(v.r.Context(), id); err != nil {
		return nil, err
	}
	p.Messages, err = h.ops.AuditMessages(v.r.Context(), id, after, pageSize)
	if after > 0 {
		p.First = link("changed", "entry", of)
	}
	if len(p.Messages) == pageSize {
		p.Next = link("changed", "entry", of, "after", strconv.FormatInt(p.Messages[pageSize-1].Number, 10))
	}
	return p, err
}

func (h *Handler) changedFile(v *visit) (func(io.Writer) error, error) {
	id, err := v.number("entry")
	return func(to io.Writer) error { return h.ops.ExportAuditMessages(v.r.Context(), id, to) }, err
}
