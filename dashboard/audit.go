package dashboard

import (
	"strconv"

	"github.com/millrace-go/millrace/inbox/admin"
)

// auditPage lists what operators did.
type auditPage struct {
	Filter    auditForm
	Consumers []string
	Entries   []admin.AuditEntry
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

func (h *Handler) audit(v *visit) (any, error) {
	form := auditForm{
		Consumer: v.query("consumer"), Operator: v.query("operator"), Action: v.query("action"),
		Since: v.query("since"), Until: v.query("until"),
	}
	filter, err := form.filter()
	if err != nil {
		return nil, err
	}
	before, err := v.number("before")
	if err != nil {
		return nil, err
	}
	p := &auditPage{Filter: form, Filtered: form != auditForm{}}
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
		if len(p.Consumers) == 0 || p.Consumers[len(p.Consumers)-1] != c.Name {
			p.Consumers = append(p.Consumers, c.Name)
		}
	}
	return p, err
}

// link is the address of the list, from the entry before on.
func (f auditForm) link(before string) string {
	return link("audit", "consumer", f.Consumer, "operator", f.Operator, "action", f.Action,
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
