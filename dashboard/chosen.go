package dashboard

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/outbox"
)

func (h *Handler) toRetry(v *visit, rows []string) ([]chosen, error) {
	return h.messages(v, rows, func(row openRow, c *chosen) {
		c.do = func(ctx context.Context) error { return h.ops.Retry(ctx, row.ID, v.operator(), h.config.Redeliver) }
		switch {
		case !row.CanDecide:
			c.Why = "It cannot be retried: it is " + lower(row.Status) + "."
		case row.Back:
			c.About += " It is sent back to its topic."
		case !row.Served:
			c.Why = "It cannot be retried from here: no queue serves its consumer, and this dashboard has no publisher."
		}
	})
}

func (h *Handler) toDiscard(v *visit, rows []string) ([]chosen, error) {
	return h.messages(v, rows, func(row openRow, c *chosen) {
		c.do = func(ctx context.Context) error { return h.ops.Discard(ctx, row.ID, v.operator()) }
		if !row.CanDecide {
			c.Why = "It cannot be discarded: it is " + lower(row.Status) + "."
		}
	})
}

// messages returns the chosen messages of the inbox, of which each says what is to be done.
func (h *Handler) messages(v *visit, rows []string, say func(openRow, *chosen)) (all []chosen, err error) {
	ids := make([]int64, len(rows))
	for i, row := range rows {
		if ids[i], err = number(row, "row"); err != nil {
			return nil, err
		}
	}
	found, err := h.ops.Messages(v.r.Context(), ids...)
	if err != nil {
		return nil, err
	}
	served, err := h.served(v)
	if err != nil {
		return nil, err
	}
	for i, id := range ids {
		c := chosen{Row: rows[i], Name: "row " + rows[i], Why: "It is not here any more: it was handled or discarded."}
		if at := slices.IndexFunc(found, func(m admin.Message) bool { return m.ID == id }); at >= 0 {
			m := found[at]
			c = chosen{Row: rows[i], Name: m.MessageID, To: link("message", "key", m.MessageID)}
			c.About = fmt.Sprintf("%s, %s: %s.", m.Consumer, lower(m.Status), short(200, why(m)))
			say(h.openRow(m, served), &c)
		}
		all = append(all, c)
	}
	return all, nil
}

func (h *Handler) parkedToRetry(v *visit, rows []string) ([]chosen, error) {
	return h.parked(v, rows, (*outbox.Publisher).Retry)
}

func (h *Handler) parkedToDiscard(v *visit, rows []string) ([]chosen, error) {
	return h.parked(v, rows, (*outbox.Publisher).Discard)
}

// parked returns the chosen messages of the outbox.
func (h *Handler) parked(
	v *visit, rows []string, do func(*outbox.Publisher, context.Context, int64, outbox.Operator) error,
) (all []chosen, err error) {
	if h.config.Outbox == nil {
		return nil, errNoOutbox
	}
	for _, row := range rows {
		id, err := number(row, "row")
		if err != nil {
			return nil, err
		}
		c := chosen{Row: row, Name: "row " + row}
		p, err := h.config.Outbox.FindParked(v.r.Context(), id)
		switch {
		case errors.Is(err, outbox.ErrNotFound), errors.Is(err, outbox.ErrWrongState):
			c.Why = problemOf(err).text
		case err != nil:
			return nil, err
		default:
			c.Name, c.About = p.Message.UUID, fmt.Sprintf("%s: %s", short(60, p.Topic), short(200, p.Error))
		}
		c.do = func(ctx context.Context) error { return do(h.config.Outbox, ctx, id, outbox.Operator(v.operator())) }
		all = append(all, c)
	}
	return all, nil
}

var errNoOutbox = problem{http.StatusNotFound, "There is no outbox here."}

// toRedispatch returns the chosen outcomes.
func (h *Handler) toRedispatch(v *visit, rows []string) (all []chosen, err error) {
	if h.config.Outbox == nil {
		return nil, errNoOutbox
	}
	for _, row := range rows {
		parts, err := partsOf(row)
		if err != nil || len(parts) != 3 {
			return nil, noRow(row)
		}
		of, err := epoch(parts[1])
		if err != nil {
			return nil, err
		}
		c := chosen{Row: row, Name: parts[2], To: link("message", "key", parts[2])}
		o, err := h.ops.Outcome(v.r.Context(), parts[0], of, parts[2])
		switch {
		case errors.Is(err, inbox.ErrNotFound):
			c.Why = "It is settled: what the handler returned is published."
		case o.StoredAt.IsZero() && errors.Is(err, inbox.ErrUnavailable), v.r.Context().Err() != nil: // else it is its codec's server
			return nil, err
		case err != nil:
			c.Why = "It cannot be read: " + err.Error()
		case o.Age < settleTime:
			c.Why = "It was stored less than a minute ago: the process that has it may be about to publish it."
		default:
			c.About = fmt.Sprintf("%s: %s to %s, stored %s ago.", o.Consumer, plural(int64(len(o.Messages)), "message"), short(60, o.Topic), age(o.Age))
		}
		c.do = func(ctx context.Context) error { return h.ops.Redispatch(ctx, o, v.operator(), h.config.Outbox) }
		all = append(all, c)
	}
	return all, nil
}

// noteRelays says so if nobody sends what is stored in the outbox.
func (h *Handler) noteRelays(v *visit) (string, error) {
	layout, err := h.config.Outbox.Shards(v.r.Context())
	if err != nil || slices.ContainsFunc(layout.Relays, func(l outbox.RelayLease) bool { return l.Alive }) {
		return "", err
	}
	return "No relay runs now: what is stored in the outbox waits for one.", nil
}

// toSkip returns the chosen aggregates. Once it was asked, a row says which versions are to be skipped.
func (h *Handler) toSkip(v *visit, rows []string) (all []chosen, err error) {
	for _, row := range rows {
		parts, err := partsOf(row)
		if err != nil || len(parts) != 3 && len(parts) != 5 || v.sure() != (len(parts) == 5) {
			return nil, noRow(row)
		}
		of := inbox.Aggregate{Consumer: parts[0], ID: parts[2]}
		if of.Epoch, err = epoch(parts[1]); err != nil {
			return nil, err
		}
		c := chosen{Row: row, Name: of.ID, To: aggregateLink(of)}
		if v.sure() {
			err = h.skip(v, &c, of, parts[3], parts[4])
		} else {
			err = h.gap(v, &c, of)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

// gap says which versions of an aggregate are missing.
func (h *Handler) gap(v *visit, c *chosen, of inbox.Aggregate) error {
	now, err := h.ops.Aggregate(v.r.Context(), of)
	switch {
	case errors.Is(err, inbox.ErrNotFound):
		c.Why = "The consumer has seen nothing of it."
	case err != nil:
		return err
	case !misses(now):
		c.Why = fmt.Sprintf("It is at version %d, and waits for nothing.", now.Applied)
	default:
		c.Row = gapRow(of, now)
		c.About = fmt.Sprintf("%s: it is at version %d; %s skipped, and then version %d is handled.",
			of.Consumer, now.Applied, versions(now.Applied+1, now.Lowest-1), now.Lowest)
	}
	return nil
}

func (h *Handler) skip(v *visit, c *chosen, of inbox.Aggregate, from, to string) error {
	first, err := strconv.ParseInt(from, 10, 64)
	last, wrong := strconv.ParseInt(to, 10, 64)
	if err != nil || wrong != nil {
		return noRow(c.Row)
	}
	c.do = func(ctx context.Context) error { return h.ops.SkipGap(ctx, of, first, last, v.operator()) }
	return nil
}

// misses reports whether an aggregate waits for a version before the first that it holds.
func misses(a admin.WaitingAggregate) bool { return a.Held.N > 0 && a.Lowest > a.Applied+1 }

// gapRow names the versions that an aggregate misses, in a form.
func gapRow(of inbox.Aggregate, now admin.WaitingAggregate) string {
	return rowOf(of.Consumer, of.Epoch, of.ID, now.Applied+1, now.Lowest-1)
}

// versions says how many of the versions up to the last is spoken of.
func versions(from, to int64) string {
	if from == to {
		return fmt.Sprintf("version %d is", from)
	}
	return fmt.Sprintf("versions %d-%d are", from, to)
}
