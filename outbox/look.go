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
	aside    bool    // look when something is to be tried again, too
	ask      []int64 // keys
	walks    bool    // over the keys that wait
	walkFrom int64
	ledger   int // number of the last one that the table has

	letters  []*letter
	draughts []draught
	blocks   map[int64]aside // by key
	nextDue  sql.NullInt64
	err      error

	walkNext  int64
	walkedAll bool
	walkErr   error
}

type kind int

const (
	due     kind = iota // what is to be tried again
	pending             // what was never tried
	held                // what is held back though nothing blocks it
	kinds
)

// look asks the database.
func (d *database) look(ctx context.Context, r *reading) (err error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	switch r.kind {
	case held:
		return d.lookHeld(ctx, r)
	case due:
		r.letters, err = d.messages(ctx, r, d.sql.SelectDue, r.window, r.shards.mask, r.shards.count, r.limit)
	default:
		r.letters, err = d.messages(ctx, r, d.sql.SelectPending, r.window, r.after, r.shards.mask, r.shards.count, r.limit)
	}
	if err != nil {
		return err
	}
	return d.lookAside(ctx, r)
}

// lookTimeout bounds a look.
const lookTimeout = 30 * time.Second

func (d *database) messages(ctx context.Context, r *reading, query string, args ...any) ([]*letter, error) {
	var rows []letterRow
	if err := d.db.SelectContext(ctx, &rows, query, args...); err != nil {
		return nil, fmt.Errorf("read messages: %w", err)
	}
	now := time.Now()
	letters := make([]*letter, 0, len(rows))
	for i := range rows {
		l := rows[i].letter(now)
		l.generation = r.shards.generation
		letters = append(letters, l)
	}
	return letters, nil
}

// lookHeld reads what is held back, key by key.
func (d *database) lookHeld(ctx context.Context, r *reading) (err error) {
	for i := range r.draughts {
		one := &r.draughts[i]
		if one.letters, err = d.messages(ctx, r, d.sql.SelectHeld, one.key, one.after, one.limit); err != nil {
			return err
		}
	}
	return nil
}

// lookAside asks for what is set aside, after the messages: what is blocked by then waits, whether it
// was when they were read or not.
func (d *database) lookAside(ctx context.Context, r *reading) error {
	keys := make(map[int64]bool)
	for _, l := range r.letters {
		if l.keyed && !l.head {
			keys[l.hash] = true
		}
	}
	for _, key := range r.ask {
		keys[key] = true
	}
	r.blocks = make(map[int64]aside)
	if err := d.blocks(ctx, keys, r.blocks); err != nil {
		return err
	}
	if r.walks {
		r.walkErr = d.walk(ctx, r)
	}
	if !r.aside {
		return nil
	}
	if err := d.db.GetContext(ctx, &r.nextDue, d.sql.SelectNextDue, r.shards.mask, r.shards.count); err != nil {
		return fmt.Errorf("read when to try again: %w", err)
	}
	return nil
}
