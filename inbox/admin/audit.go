package admin

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/stored"
)

// ConsumerFilter selects consumers of the namespace. Zero fields match all.
type ConsumerFilter struct {
	Consumer string
	Epoch    *int // nil matches all
}

func (f ConsumerFilter) filter() Filter { return Filter{Consumer: f.Consumer, Epoch: f.Epoch} }

// AuditEntry is a decision of an operator about one message, about a consumer, or about those of its
// messages that a filter matched.
type AuditEntry struct {
	ID       int64
	At       time.Time
	Operator Operator
	Action   string
	Detail   string

	// Consumer and Epoch are empty for decisions about the outbox, which has no namespace: every
	// service that shares the tables sees them. A decision about a step of middleware.Deduplicate has its
	// Consumer.
	Consumer string
	Epoch    int

	// MessageID is the key of the message, or its UUID in the outbox. It is the aggregate if a
	// version was set, and empty if the decision was about the whole consumer or several messages.
	MessageID string

	// Bulk is the number of an action on many messages, else 0. It has an entry for each consumer. Detail
	// says which messages it was to take, Messages how many it has changed, and [Admin.AuditMessages]
	// lists them.
	Bulk     int64
	Messages int64
}

type auditRow struct {
	ID        int64  `db:"id"`
	At        int64  `db:"at"`
	Actor     []byte `db:"actor"`
	Action    []byte `db:"action"`
	Reason    []byte `db:"reason"`
	Consumer  int32  `db:"consumer"`
	MessageID []byte `db:"message_id"`
	Detail    []byte `db:"detail"`
	Bulk      int64  `db:"bulk"`
	Messages  int64  `db:"messages"`
}

// outboxAudit is the consumer in entries about the outbox.
const outboxAudit = 0

// Audit lists what operators did, the newest first: at most limit entries (up to MaxPage) before
// the one with the given ID, or from the newest on if that is 0. A filter leaves out the outbox. A
// decision about a collision is listed twice, once for each of the two messages.
func (a *Admin) Audit(ctx context.Context, f ConsumerFilter, before int64, limit int) ([]AuditEntry, error) {
	entries, err := a.audited(ctx, f, before, limit)
	if err != nil {
		return nil, fmt.Errorf("inbox: list what operators did: %w", database.Explain(err))
	}
	return entries, nil
}

// AuditFilter selects decisions of operators. Zero fields match all. Operators, actions and times have no index.
type AuditFilter struct {
	ConsumerFilter
	Operator string
	Action   string
	Since    time.Time
	Until    time.Time // exclusive
}

func (f AuditFilter) matches(e AuditEntry) bool {
	return (f.Operator == "" || e.Operator.Name == f.Operator) && (f.Action == "" || e.Action == f.Action) &&
		!e.At.Before(f.Since) && (f.Until.IsZero() || e.At.Before(f.Until))
}

// AuditPage is a page of what operators did.
type AuditPage struct {
	Entries []AuditEntry

	// Next is the ID before which the next page begins, 0 at the end. If a page has a Next but fewer
	// entries than were asked for, the search stopped before the end.
	Next int64
}

// SearchAudit is [Admin.Audit] for the entries that f matches. It reads about look entries at most, and says where to
// continue.
func (a *Admin) SearchAudit(ctx context.Context, f AuditFilter, before int64, limit, look int) (page AuditPage, err error) {
	const late = time.Minute // entries of one moment may not be in the order of their times
	if err := validPage(limit); err != nil {
		return page, fmt.Errorf("inbox: search what operators did: %w", err)
	}
	size := MaxPage
	if f == (AuditFilter{ConsumerFilter: f.ConsumerFilter}) {
		size = min(limit+1, MaxPage)
	}
	for looked := 0; looked < look; looked += size {
		entries, err := a.Audit(ctx, f.ConsumerFilter, before, size)
		if err != nil {
			return page, err
		}
		for i, e := range entries {
			if before = e.ID; !f.matches(e) {
				continue
			}
			if page.Entries = append(page.Entries, e); len(page.Entries) < limit {
				continue
			}
			if i < len(entries)-1 || len(entries) == size {
				page.Next = before
			}
			return page, nil
		}
		if len(entries) < size || entries[len(entries)-1].At.Before(f.Since.Add(-late)) {
			return page, nil
		}
	}
	page.Next = before
	return page, nil
}

// audited reads the range of each consumer in the order of its index, so the cost depends on the
// page, not on the table.
func (a *Admin) audited(ctx context.Context, f ConsumerFilter, before int64, limit int) ([]AuditEntry, error) {
	if err := validPage(limit); err != nil {
		return nil, err
	}
	if before == 0 {
		before = math.MaxInt64
	}
	consumers, err := a.auditable(ctx, f)
	if err != nil {
		return nil, err
	}
	var ids []int64
	for consumer := range consumers {
		var found []int64
		err := sqlx.SelectContext(ctx, a.rows.Reader(ctx), &found, a.rows.Dialect.Remedy.ListAudit, consumer, before, limit)
		if err != nil {
			return nil, err
		}
		ids = append(ids, found...)
	}
	slices.Sort(ids)
	slices.Reverse(ids)
	ids = ids[:min(len(ids), limit)]
	if len(ids) == 0 {
		return nil, nil
	}
	found, err := a.auditRows(ctx, ids)
	entries := make([]AuditEntry, 0, len(found))
	for _, row := range found {
		entries = append(entries, row.entry(consumers[row.Consumer]))
	}
	return entries, err
}

// auditable returns the consumers whose entries a filter selects, those of leases too, whose steps are
// decided, and the outbox if it selects all.
func (a *Admin) auditable(ctx context.Context, f ConsumerFilter) (map[int32]stored.Consumer, error) {
	rows, err := a.rows.Everyone(ctx, f.Consumer, f.Epoch)
	consumers := make(map[int32]stored.Consumer, len(rows)+1)
	for _, c := range rows {
		consumers[c.ID] = c
	}
	if f == (ConsumerFilter{}) {
		consumers[outboxAudit] = stored.Consumer{}
	}
	return consumers, err
}

func (a *Admin) auditRows(ctx context.Context, ids []int64) (found []auditRow, err error) {
	query, args, err := a.rows.Dialect.In(a.rows.Dialect.Remedy.SelectAudit, ids)
	if err == nil {
		err = sqlx.SelectContext(ctx, a.rows.Reader(ctx), &found, query, args...)
	}
	return found, err
}

func (r auditRow) entry(c stored.Consumer) AuditEntry {
	e := AuditEntry{
		ID: r.ID, At: time.UnixMicro(r.At).UTC(),
		Operator: Operator{Name: string(r.Actor), Reason: string(r.Reason)},
		Action:   string(r.Action), Detail: string(r.Detail),
		Consumer: c.Shown(), Epoch: c.Epoch, MessageID: keycode.String(r.MessageID),
		Bulk: r.Bulk, Messages: r.Messages,
	}
	if r.Consumer == outboxAudit {
		e.MessageID = string(r.MessageID)
	}
	return e
}

func validPage(limit int) error {
	if limit < 1 || limit > MaxPage {
		return fmt.Errorf("limit %d is not between 1 and %d: for more, list the next page after the last entry", limit, MaxPage)
	}
	return nil
}
