package outbox

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// reading is one look into the table, and what it found.
type reading struct {
	kind     kind
	epoch    int
	shards   assignment
	window   string // ids in hand
	after    int64
	limit    int
	began    time.Time
	aside    bool // look for what is set aside too
	orphaned bool // and for what waits in vain
	known    bool // keys are blocked, so see whether they still are
	ledger   int  // number of the last one that the table has

	letters []*letter
	blocked []int64
	orphans []int64
	nextDue sql.NullInt64
	err     error
}

type kind int

const (
	load    kind = iota // what is blocked in shards that came
	pending             // what was never tried
	due                 // what is to be tried again
)

// look asks the database.
func (d *database) look(ctx context.Context, r *reading) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	switch r.kind {
	case load:
		return d.lookAside(ctx, r)
	case due:
		return d.messages(ctx, r, d.sql.SelectDue, r.window, r.shards.mask, r.shards.count, r.limit)
	case pending:
		if r.aside {
			if err := d.lookAside(ctx, r); err != nil {
				return err
			}
		}
	}
	return d.messages(ctx, r, d.sql.SelectPending, r.window, r.after, r.shards.mask, r.shards.count, r.limit)
}

// lookTimeout bounds a look.
const lookTimeout = 30 * time.Second

func (d *database) messages(ctx context.Context, r *reading, query string, args ...any) error {
	var rows []letterRow
	if err := d.db.SelectContext(ctx, &rows, query, args...); err != nil {
		return fmt.Errorf("read messages: %w", err)
	}
	now := time.Now()
	r.letters = make([]*letter, 0, len(rows))
	for i := range rows {
		l := rows[i].letter(now)
		l.generation = r.shards.generation
		r.letters = append(r.letters, l)
	}
	return nil
}

// lookAside asks for what is set aside.
func (d *database) lookAside(ctx context.Context, r *reading) error {
	if r.known || r.kind == load {
		if err := d.db.SelectContext(ctx, &r.blocked, d.sql.SelectBlocked, r.shards.mask, r.shards.count); err != nil {
			return fmt.Errorf("read the blocked keys: %w", err)
		}
	}
	if r.orphaned || r.kind == load {
		if err := d.db.SelectContext(ctx, &r.orphans, d.sql.SelectOrphans, r.shards.mask, r.shards.count); err != nil {
			return fmt.Errorf("read the keys that wait in vain: %w", err)
		}
	}
	if err := d.db.GetContext(ctx, &r.nextDue, d.sql.SelectNextDue, r.shards.mask, r.shards.count); err != nil {
		return fmt.Errorf("read when to try again: %w", err)
	}
	return nil
}
