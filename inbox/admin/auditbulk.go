package admin

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/keycode"
)

// AuditMessage is a message that an action on many has changed.
type AuditMessage struct {
	Number    int64 // counts the messages of the entry, from 1 on
	At        time.Time
	MessageID string // the key
	Original  string // of a collision: the key it collided with
	Detail    string
}

type auditMessageRow struct {
	Number    int64  `db:"number"`
	At        int64  `db:"at"`
	MessageID []byte `db:"message_id"`
	Original  []byte `db:"original"`
	Detail    []byte `db:"detail"`
}

// AuditEntry returns one entry of [Admin.Audit], or [inbox.ErrNotFound].
func (a *Admin) AuditEntry(ctx context.Context, id int64) (AuditEntry, error) {
	entry, err := a.auditEntry(ctx, id)
	if err != nil {
		return entry, fmt.Errorf("inbox: entry %d of the audit: %w", id, database.Explain(err))
	}
	return entry, nil
}

func (a *Admin) auditEntry(ctx context.Context, id int64) (AuditEntry, error) {
	consumers, err := a.auditable(ctx, ConsumerFilter{})
	var rows []auditRow
	if err == nil {
		rows, err = a.auditRows(ctx, []int64{id})
	}
	if err != nil {
		return AuditEntry{}, err
	}
	for _, row := range rows {
		if c, ours := consumers[row.Consumer]; ours {
			return row.entry(c), nil
		}
	}
	return AuditEntry{}, inbox.ErrNotFound
}

// AuditMessages lists the messages that an entry of an action on many counts, in the order in which they
// were changed: at most limit (up to MaxPage) behind the one with the given number, which is 0 to begin.
// It returns [inbox.ErrNotFound] if there is no such entry.
func (a *Admin) AuditMessages(ctx context.Context, entry, after int64, limit int) ([]AuditMessage, error) {
	err := validPage(limit)
	if err == nil {
		_, err = a.auditEntry(ctx, entry)
	}
	var rows []auditMessageRow
	if err == nil {
		err = sqlx.SelectContext(ctx, a.rows.Reader(ctx), &rows, a.rows.Dialect.Remedy.ListBulkMessages, entry, after, limit)
	}
	if err != nil {
		return nil, fmt.Errorf("inbox: list the messages of entry %d of the audit: %w", entry, database.Explain(err))
	}
	all := make([]AuditMessage, 0, len(rows))
	for _, r := range rows {
		all = append(all, AuditMessage{
			Number: r.Number, At: time.UnixMicro(r.At).UTC(),
			MessageID: keycode.String(r.MessageID), Original: keycode.String(r.Original), Detail: string(r.Detail),
		})
	}
	return all, nil
}

// pruneAction is the action's name in the audit table.
const pruneAction = "prune audit"

// PruneAudit deletes the entries of the audit that are older than before, with the messages of actions
// on many, and adds an entry that says so for each consumer that has such entries. A filter leaves out
// the outbox. PruneAudit works in batches. It returns the number of deleted entries, also with an error
// or at the end of ctx: another call deletes the rest.
func (a *Admin) PruneAudit(ctx context.Context, f ConsumerFilter, before time.Time, by Operator) (deleted int, err error) {
	if err := by.Validate(); err != nil {
		return 0, err
	}
	consumers, err := a.auditable(ctx, f)
	if now, late := a.rows.Now(ctx); late != nil {
		err = cmp.Or(err, late)
	} else if before.After(now) { // else it would delete its own entry
		before = now
	}
	for _, id := range slices.Sorted(maps.Keys(consumers)) {
		if err != nil {
			break
		}
		var n int
		n, err = a.prune(ctx, id, before, by)
		deleted += n
	}
	if deleted > 0 {
		a.inbox.Decided(by, pruneAction, watermill.LogFields{"count": deleted})
	}
	if err != nil {
		return deleted, fmt.Errorf("inbox: prune the audit, %d entries deleted: %w", deleted, database.Explain(err))
	}
	return deleted, nil
}

// prune deletes the old entries of a consumer, or of the outbox.
func (a *Admin) prune(ctx context.Context, consumer int32, before time.Time, by Operator) (deleted int, err error) {
	for {
		old, err := a.oldest(ctx, consumer, before)
		if err != nil || len(old) == 0 {
			return deleted, err
		}
		if deleted == 0 {
			err = a.rows.Write(ctx, func(tx *sqlx.Tx) error {
				return a.rows.AuditOf(ctx, tx, by, pruneAction, consumer, []byte{}, "entries before "+before.UTC().Format(time.RFC3339))
			})
		}
		for _, e := range old {
			if err == nil {
				err = a.pruneMessages(ctx, e)
			}
		}
		if err == nil {
			err = a.pruneEntries(ctx, old)
		}
		if err != nil {
			return deleted, err
		}
		deleted += len(old)
	}
}

type oldEntry struct {
	ID       int64         `db:"id"`
	At       int64         `db:"at"`
	Messages sql.NullInt64 `db:"messages"` // only of an action on many
}

// oldest returns some of the entries of a consumer that are older than before.
func (a *Admin) oldest(ctx context.Context, consumer int32, before time.Time) (old []oldEntry, err error) {
	const batch = 500
	err = sqlx.SelectContext(ctx, a.rows.Reader(ctx), &old, a.rows.Dialect.Remedy.OldestAudit, consumer, batch)
	return slices.DeleteFunc(old, func(e oldEntry) bool { return e.At >= before.UnixMicro() }), err
}

// pruneMessages deletes the messages of an entry, a few in each transaction.
func (a *Admin) pruneMessages(ctx context.Context, e oldEntry) error {
	const batch = 1000
	for upTo := int64(batch); upTo < e.Messages.Int64+batch; upTo += batch {
		err := a.rows.Write(ctx, func(tx *sqlx.Tx) error {
			_, err := tx.ExecContext(ctx, a.rows.Dialect.Remedy.DeleteBulkMessages, e.ID, upTo)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// pruneEntries deletes entries, and the messages that were added since [Admin.pruneMessages]: an action that is still
// running holds its entry until its batch ends.
func (a *Admin) pruneEntries(ctx context.Context, old []oldEntry) error {
	ids := make([]int64, 0, len(old))
	for _, e := range old {
		ids = append(ids, e.ID)
	}
	query, args, err := a.rows.Dialect.In(a.rows.Dialect.Remedy.DeleteAudit, ids)
	if err != nil {
		return err
	}
	return a.rows.Write(ctx, func(tx *sqlx.Tx) error {
		if _, err := tx.ExecContext(ctx, query, args...); err != nil {
			return err
		}
		for _, e := range old {
			if !e.Messages.Valid {
				continue
			}
			if _, err := tx.ExecContext(ctx, a.rows.Dialect.Remedy.DeleteBulkMessages, e.ID, int64(math.MaxInt64)); err != nil {
				return err
			}
		}
		return nil
	})
}
