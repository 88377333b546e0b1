package dashboard

import (
	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
)

// consumersPage lists the consumers that the tables know.
type consumersPage struct {
	Consumers []knownConsumer
}

// knownConsumer is a consumer, and whether its retention is too short.
type knownConsumer struct {
	admin.KnownConsumer
	Short  bool // the retention is shorter than the declared window
	Stored admin.Count
}

func (h *Handler) consumers(v *visit) (any, error) {
	known, err := h.ops.Consumers(v.r.Context())
	if err != nil {
		return nil, err
	}
	taken, err := h.lately(v.r.Context())
	if err != nil {
		return nil, err
	}
	stored := map[consumerOf]admin.Count{}
	for _, b := range taken[len(taken)-1].backlogs {
		stored[consumerOf{b.Consumer, b.Epoch}] = sum(open(b), stuck(b), b.Held)
	}
	p := &consumersPage{}
	for _, k := range known {
		p.Consumers = append(p.Consumers, knownConsumer{
			KnownConsumer: k, Stored: stored[consumerOf{k.Name, k.Epoch}],
			Short: k.Retention != inbox.Forever && k.Retention < k.Window,
		})
	}
	return p, nil
}
