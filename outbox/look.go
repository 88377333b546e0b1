package outbox

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/millrace-go/millrace/internal/dialect"
)

// reading is one look into the table, and what it found.
type reading struct {
	kind     kind
	epoch    int
	shards   shardSet
	window   string // ids in hand
	after    int64
	limit    int
	began    time.Time
	tail     bool           // past a backlog
	unsure   map[int64]bool // keys of which it cannot tell what is next
	ends     bool           // look where the table ends if there is more than it takes
	aside    bool           // look when something is to be tried again, too
	walks    bool           // over the keys
	walkFrom int64
	ledger   int               // number of the last one that the table has
	heads    map[int64]int64   // ids to ask for, and the keys that they block; then those that are gone
	had      map[int64]*letter // what was in hand when it began, of keys

	letters []*letter
	askings []asking
	highest int64 // id
	nextDue sql.NullInt64
	err     error

	walked    []int64 // keys
	walkedAll bool
	walkErr   error
}

type kind int

const (
	due     kind = iota // what is to be tried again
	pending             // what was never tried
	keys                // what is unsent of some keys
	kinds
)

// look asks the database.
func (d *tables) look(ctx context.Context, r *reading) (err error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	switch r.kind {
	case keys:
		return d.lookForKeys(ctx, r)
	case due:
		r.letters, err = d.messages(ctx, d.sql.SelectDue, r.window, r.shards.mask(), shardCount, r.limit)
	default:
		r.letters, err = d.messages(ctx, d.sql.SelectPending, r.window, r.after, r.shards.mask(), shardCount, r.limit)
	}
	if err != nil {
		return err
	}
	return d.lookAside(ctx, r)
}

// lookTimeout bounds a look.
const lookTimeout = 30 * time.Second

func (d *tables) messages(ctx context.Context, query string, args ...any) ([]*letter, error) {
	var rows []letterRow
	if err := d.db.SelectContext(ctx, &rows, query, args...); err != nil {
		return nil, fmt.Errorf("read messages: %w", err)
	}
	now := time.Now()
	letters := make([]*letter, 0, len(rows))
	for i := range rows {
		letters = append(letters, rows[i].letter(now))
	}
	return letters, nil
}

// lookAside asks for what a look for messages goes with.
func (d *tables) lookAside(ctx context.Context, r *reading) error {
	if r.walks {
		r.walkErr = d.walk(ctx, r)
	}
	if r.ends && len(r.letters) == r.limit {
		last := r.letters[r.limit-1].id
		var beyond sql.NullInt64
		if err := d.db.GetContext(ctx, &beyond, d.sql.SelectHighest, last); err != nil {
			return fmt.Errorf("read the greatest id: %w", err)
		}
		r.highest = max(last, beyond.Int64)
	}
	if !r.aside {
		return nil
	}
	if err := d.db.GetContext(ctx, &r.nextDue, d.sql.SelectNextDue, r.shards.mask(), shardCount); err != nil {
		return fmt.Errorf("read when to try again: %w", err)
	}
	return d.missHeads(ctx, r)
}

// missHeads leaves of the heads those that are not set aside any more: an operator may have discarded them.
func (d *tables) missHeads(ctx context.Context, r *reading) error {
	if len(r.heads) == 0 {
		return nil
	}
	var there []int64
	if err := d.db.SelectContext(ctx, &there, d.sql.SelectAside, dialect.IDs(slices.Collect(maps.Keys(r.heads)))); err != nil {
		return fmt.Errorf("read what blocks keys: %w", err)
	}
	for _, id := range there {
		delete(r.heads, id)
	}
	return nil
}
