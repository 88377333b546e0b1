package dashboard

import (
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/outbox"
)

// processesPage lists the processes of the service, or those with a name.
type processesPage struct {
	Name      string
	Processes []admin.Process
	Layout    outbox.Layout
	First     string
	Next      string
}

// mostServed is how many consumers of a process are shown.
const mostServed = 30

func (h *Handler) processes(v *visit) (any, error) {
	p := &processesPage{Name: v.query("name")}
	behind := v.query("after")
	var err error
	if p.Processes, err = h.ops.Processes(v.r.Context(), p.Name, behind, pageSize+1); err != nil {
		return nil, err
	}
	if h.config.Outbox != nil {
		if p.Layout, err = h.config.Outbox.Shards(v.r.Context()); err != nil {
			return nil, err
		}
	}
	if len(p.Processes) > pageSize {
		p.Processes = p.Processes[:pageSize]
		p.Next = link("processes", "name", p.Name, "after", p.Processes[pageSize-1].Cursor)
	}
	for i, at := range p.Processes {
		if n := len(at.Serves); n > mostServed {
			p.Processes[i].Serves, p.Processes[i].More = at.Serves[:mostServed], at.More+n-mostServed
		}
	}
	if behind != "" {
		p.First = link("processes", "name", p.Name)
	}
	return p, nil
}
