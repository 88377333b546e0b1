package dashboard

import (
	"strconv"

	"github.com/millrace-go/millrace/inbox/admin"
)

// auditPage lists what operators did.
type auditPage struct {
	Consumer string
	Entries  []admin.AuditEntry
	First    string
	Next     string
}

func (h *Handler) audit(v *visit) (any, error) {
	p := &auditPage{Consumer: v.query("consumer")}
	before, err := v.number("before")
	if err != nil {
		return nil, err
	}
	p.Entries, err = h.ops.Audit(v.r.Context(), admin.ConsumerFilter{Consumer: p.Consumer}, before, pageSize+1)
	if err != nil {
		return nil, err
	}
	if len(p.Entries) > pageSize {
		p.Entries = p.Entries[:pageSize]
		p.Next = link("audit", "consumer", p.Consumer, "before", strconv.FormatInt(p.Entries[pageSize-1].ID, 10))
	}
	if before > 0 {
		p.First = link("audit", "consumer", p.Consumer)
	}
	return p, nil
}
