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
		if err == nil {
			err = d.lookBehind(ctx, d.sql.SelectFirsts, r.letters, 0)
		}
	default:
		if err = d.lookForChanges(ctx, r); err != nil {
			return err
		}
		r.letters, err = d.messages(ctx, d.sql.SelectPending, r.window, r.after, r.shards.mask(), shardCount, r.limit)
		if err == nil && d.sql.SelectShortKeys != "" {
			err = d.lookBehind(ctx, d.sql.SelectShortKeys, r.letters, unknown)
		}
		if err == nil {
			err = d.lookForReplaced(ctx, r)
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

// knownRow is what the statements return that read no whole messages.
type knownRow struct {
	ID       int64 `db:"id"`
	Hash     int64 `db:"key_hash"`
	Status   int   `db:"status"`
	StoredAt int64 `db:"created_at"`
}

// lookBehind finds the last message before each of the letters among those that query returns of its
// key. Where it returns none of a key, that is otherwise.
func (d *tables) lookBehind(ctx context.Context, query string, letters []*letter, otherwise int64) error {
	unsent := make(map[int64][]int64) // by key
	for _, l := range letters {
		if l.keyed {
			unsent[l.hash] = nil
		}
	}
	if len(unsent) == 0 {
		return nil
	}
	var rows []knownRow
	if err := d.db.SelectContext(ctx, &rows, query, dialect.IDs(slices.Collect(maps.Keys(unsent)))); err != nil {
		return fmt.Errorf("read which messages come before: %w", err)
	}
	for _, row := range rows {
		unsent[row.Hash] = append(unsent[row.Hash], row.ID)
	}
	for _, l := range letters {
		if l.keyed && len(unsent[l.hash]) == 0 {
			l.behind = otherwise
		}
		for _, id := range unsent[l.hash] {
			if l.keyed && id < l.id {
				l.behind = max(l.behind, id)
			}
		}
	}
	return nil
}

// lookForReplaced finds out which letters come behind a message that only has the id of one in hand: a
// replica that lagged behind and becomes the primary gives ids again.
func (d *tables) lookForReplaced(ctx context.Context, r *reading) error {
	behind := make(map[int64]bool)
	for _, l := range r.letters {
		if r.had[l.behind] != nil {
			behind[l.behind] = false
		}
	}
	if len(behind) == 0 {
		return nil
	}
	rows, err := d.known(ctx, slices.Collect(maps.Keys(behind)))
	if err != nil {
		return err
	}
	for _, row := range rows {
		behind[row.ID] = row.StoredAt != r.had[row.ID].at
	}
	for _, l := range r.letters {
		if behind[l.behind] {
			l.behind = unknown
		}
	}
	return nil
}

// known reads what has these ids now.
func (d *tables) known(ctx context.Context, ids []int64) (rows []knownRow, err error) {
	if err = d.db.SelectContext(ctx, &rows, d.sql.SelectKnown, dialect.IDs(ids)); err != nil {
		return nil, fmt.Errorf("read what became of messages: %w", err)
	}
	return rows, nil
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
	rows, err := d.known(ctx, slices.Collect(maps.Keys(heads)))
	if err != nil {
		return err
	}
	for _, row := range rows {
		if setAside(row.Status) && row.Hash == heads[row.ID] {
			delete(heads, row.ID)
		}
	}
	return nil
}
