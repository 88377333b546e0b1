package dashboard

import (
	"slices"

	"github.com/millrace-go/millrace/inbox/admin"
)

// waitingPage lists aggregates that hold messages.
type waitingPage struct {
	Consumer   string
	Aggregates []admin.WaitingAggregate
	Picks      bool // an operator can choose some
	First      string
	Next       string
}

func (h *Handler) waiting(v *visit) (any, error) {
	p := &waitingPage{Consumer: v.query("consumer")}
	behind := v.query("after")
	var err error
	p.Aggregates, err = h.ops.Waiting(v.r.Context(), admin.ConsumerFilter{Consumer: p.Consumer}, behind, pageSize+1)
	if err != nil {
		return nil, err
	}
	p.Picks = v.Acting && slices.ContainsFunc(p.Aggregates, misses)
	if len(p.Aggregates) > pageSize {
		p.Aggregates = p.Aggregates[:pageSize]
		p.Next = link("waiting", "consumer", p.Consumer, "after", p.Aggregates[pageSize-1].Cursor)
	}
	if behind != "" {
		p.First = link("waiting", "consumer", p.Consumer)
	}
	return p, nil
}
