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

// reading is one look, and what it found.
type reading struct {
	kind     kind
	epoch    int
	shards   shardSet
	window   string // ids in hand
	after    int64
	limit    int
	began    time.Time
	tail     bool           // it reads the tail
	unsure   map[int64]bool // keys of which it cannot tell which message is next
	ends     bool           // if a page does not suffice, also find the end of the table
	aside    bool           // also find when the next retry is due
	walks    bool           // also walk over keys
	walkFrom int64
	ledger   int               // number of the last ledger in the table
	heads    map[int64]int64   // ids to check, and the keys that they block; afterwards those that are gone
	had      map[int64]*letter // keyed letters in hand when it began

	letters []*letter
	askings []asking
	highest int64 // id
	nextDue sql.NullInt64
	err     error

	walked    []int64 // keys
	walkedAll bool
	walkErr   error
}

// kind is what a look is for.
type kind int

const (
	due     kind = iota // messages whose retry is due
	pending             // messages that were never tried
	keys                // unsent messages of some keys
	kinds
)

// look reads what r asks for.
func (d *tables) look(ctx context.Context, r *reading) (err error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	switch r.kind {
	case keys:
		return d.lookForKeys(ctx, r)
	case due: // what is due later first, or else one that becomes due in between would be in neither
		if err = d.db.GetContext(ctx, &r.nextDue, d.sql.SelectLaterDue, r.shards.mask(), shardCount); err != nil {
			return fmt.Errorf("read when the next retry is due: %w", err)
		}
		r.letters, err = d.messages(ctx, d.sql.SelectDue, r.window, r.shards.mask(), shardCount, r.limit)
	default:
		if err = d.lookForChanges(ctx, r); err != nil {
			return err
		}
		r.letters, err = d.messages(ctx, d.sql.SelectPending, r.window, r.after, r.shards.mask(), shardCount, r.limit)
		if err == nil {
			err = d.lookBehind(ctx, r.letters)
		}
	}
	if err != nil {
		return err
	}
	return d.lookAside(ctx, r)
}

// lookTimeout bounds a look.
const lookTimeout = 30 * time.Second

// inTime gives a statement the time of a look.
func inTime(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	return do(ctx)
}

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

// lookBehind finds the unsent message before each of the letters, where SelectPending does not.
func (d *tables) lookBehind(ctx context.Context, letters []*letter) error {
	unsent := make(map[int64][]int64) // by key
	for _, l := range letters {
		if l.keyed {
			unsent[l.hash] = nil
		}
	}
	if d.sql.SelectShortKeys == "" || len(unsent) == 0 {
		return nil
	}
	var rows []struct {
		Key int64 `db:"key_hash"`
		ID  int64 `db:"id"`
	}
	err := d.db.SelectContext(ctx, &rows, d.sql.SelectShortKeys, dialect.IDs(slices.Collect(maps.Keys(unsent))))
	if err != nil {
		return fmt.Errorf("read which messages come before: %w", err)
	}
	for _, row := range rows {
		unsent[row.Key] = append(unsent[row.Key], row.ID)
	}
	for _, l := range letters {
		if l.keyed && len(unsent[l.hash]) == 0 {
			l.behind = unknown
		}
		for _, id := range unsent[l.hash] {
			if id < l.id {
				l.behind = max(l.behind, id)
			}
		}
	}
	return nil
}

// lookAside reads what r asks for besides messages.
func (d *tables) lookAside(ctx context.Context, r *reading) error {
	if r.ends && len(r.letters) == r.limit {
		last := r.letters[r.limit-1].id
		var beyond sql.NullInt64
		if err := d.db.GetContext(ctx, &beyond, d.sql.SelectHighest, last); err != nil {
			return fmt.Errorf("read the greatest id: %w", err)
		}
		r.highest = max(last, beyond.Int64)
	}
	if r.walks { // last, because it may be cut off
		r.walkErr = d.walk(ctx, r)
	}
	return nil
}

// lookForChanges reads what others may have changed about messages that were tried before. A sweep
// does so first, because what it does next may be cut off.
func (d *tables) lookForChanges(ctx context.Context, r *reading) error {
	heads := r.heads
	r.heads = nil
	if !r.aside {
		return nil
	}
	if err := d.db.GetContext(ctx, &r.nextDue, d.sql.SelectNextDue, r.shards.mask(), shardCount); err != nil {
		return fmt.Errorf("read when the next retry is due: %w", err)
	}
	if err := d.missHeads(ctx, heads); err != nil {
		return err
	}
	r.heads = heads
	return nil
}

// missHeads leaves in heads those that are gone: an operator may have discarded them.
func (d *tables) missHeads(ctx context.Context, heads map[int64]int64) error {
	if len(heads) == 0 {
		return nil
	}
	var there []int64
	if err := d.db.SelectContext(ctx, &there, d.sql.SelectAside, dialect.IDs(slices.Collect(maps.Keys(heads)))); err != nil {
		return fmt.Errorf("read the heads of blocked keys: %w", err)
	}
	for _, id := range there {
		delete(heads, id)
	}
	return nil
}
