package dashboard

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/stored"
	"github.com/millrace-go/millrace/outbox"
)

// outboxPage lists what is to be sent: messages of the outbox, and outcomes of handlers without an
// outbox.
type outboxPage struct {
	Present   bool
	Backlog   outbox.Backlog
	Layout    outbox.Layout
	Parked    []outbox.Parked
	First     string
	Next      string
	Unsettled []stored.Unsettled // their messages without payloads
	Sends     bool               // an operator can have them sent
	Unread    bool               // some outcomes cannot be read; the log says which
}

// settleTime is the age from which an outcome may need attention.
const settleTime = time.Minute

func (h *Handler) outbox(v *visit) (any, error) {
	p := &outboxPage{Present: h.config.Outbox != nil, Sends: h.config.Outbox != nil && v.Acting}
	if p.Present {
		if err := p.fill(v, h.config.Outbox); err != nil {
			return nil, err
		}
	}
	return p, p.fillUnsettled(v.r.Context(), h)
}

// fillUnsettled opens no payload.
func (p *outboxPage) fillUnsettled(ctx context.Context, h *Handler) error {
	inner := h.store.Internals()
	listed, err := inner.Unsettled(ctx, stored.UnsettledFilter{Age: settleTime}, pageSize)
	var problems []error
	for _, o := range listed {
		kept, err := inner.KeptOutcome(ctx, o)
		if errors.Is(err, inbox.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		if o.Messages, err = inner.OutcomeOutline(kept); err != nil {
			problems = append(problems, fmt.Errorf("outcome of consumer %q, message %q: %w", o.Consumer, o.MessageID, err))
			continue
		}
		p.Unsettled = append(p.Unsettled, o)
	}
	if p.Unread = len(problems) > 0; p.Unread {
		h.config.Logger.Error("dashboard: outcomes cannot be read", errors.Join(problems...), nil)
	}
	return err
}

func (p *outboxPage) fill(v *visit, out *outbox.Publisher) error {
	ctx := v.r.Context()
	behind, err := v.number("after")
	if err != nil {
		return err
	}
	if p.Backlog, err = out.Backlog(ctx, outbox.BacklogOptions{}); err != nil {
		return err
	}
	if p.Layout, err = out.Shards(ctx); err != nil {
		return err
	}
	if p.Parked, err = out.ListParked(ctx, behind, pageSize+1); err != nil {
		return err
	}
	if len(p.Parked) > pageSize {
		p.Parked = p.Parked[:pageSize]
		p.Next = link("outbox", "after", strconv.FormatInt(p.Parked[pageSize-1].ID, 10))
	}
	if behind > 0 {
		p.First = "outbox"
	}
	return nil
}
