package admin

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/stored"
)

// Page is part of a list of open messages.
type Page struct {
	Messages []Message // without payloads, in the order they were stored

	// Next is the ID after which the next page begins, 0 at the end. If a page has a Next but fewer
	// messages than were asked for, the search stopped before the end of the list.
	Next int64
}

// Search lists open messages that f matches, without payloads and in the order they were stored: at
// most limit messages (up to MaxPage) after the row with the given ID, which is 0 to begin. If no
// index serves f, it reads about look rows at most and says where to continue; 0 sets no limit.
func (a *Admin) Search(ctx context.Context, f Filter, after int64, limit, look int) (Page, error) {
	page, err := a.searchPage(ctx, f, after, limit, look)
	if err != nil {
		return Page{}, fmt.Errorf("inbox: search messages: %w", database.Explain(err))
	}
	return page, nil
}

func (a *Admin) searchPage(ctx context.Context, f Filter, after int64, limit, look int) (Page, error) {
	if look < 0 {
		return Page{}, fmt.Errorf("read %d rows: the number is negative", look)
	}
	if look == 0 {
		look = math.MaxInt
	}
	ids, next, err := a.search(ctx, f, after, limit, look, stored.Open...)
	if err != nil {
		return Page{}, err
	}
	messages, err := a.readPage(ctx, ids, a.rows.Dialect.Remedy.ListOutlines, a.outline)
	return Page{messages, next}, err
}

// reach is a range of an index, read in the order of the IDs.
type reach struct {
	statement string
	args      []any   // of the statement, without the start and the limit
	at        int64   // read up to this ID …
	ended     bool    // … and this was all
	found     []int64 // the matching IDs
	looked    int
	step      int // how many rows to read next
}

// reaches returns the ranges in which f may match messages of c: a group of errors, or each state;
// if f names no state, the states of.
func (a *Admin) reaches(c stored.Consumer, f Filter, after int64, step int, of ...Status) (all []*reach) {
	states := f.statuses(of...)
	if f.ErrorGroup != 0 {
		args := append(f.bounds(), states[0], states[len(states)-1], c.ID, f.ErrorGroup)
		return []*reach{{statement: a.rows.Dialect.Remedy.SearchGroup, args: args, at: after, step: step}}
	}
	for _, status := range states {
		args := append(f.bounds(), c.ID, status)
		all = append(all, &reach{statement: a.rows.Dialect.Remedy.SearchStatus, args: args, at: after, step: step})
	}
	return all
}

type reachRow struct {
	Found  int64 `db:"found"` // 0 for those that do not match
	Last   int64 `db:"last_id"`
	Looked int   `db:"looked"`
}

// mostStep is the greatest number of rows read at once if few match.
const mostStep = 5000

// read reads on in r, and more rows the next time.
func (a *Admin) read(ctx context.Context, r *reach) error {
	var rows []reachRow
	if err := sqlx.SelectContext(ctx, a.rows.Reader(ctx), &rows, r.statement, append(slices.Clone(r.args), r.at, r.step)...); err != nil {
		return err
	}
	looked := 0
	for _, row := range rows {
		if row.Found != 0 {
			r.found = append(r.found, row.Found)
		}
		r.at, looked = max(r.at, row.Last), looked+row.Looked
	}
	r.looked += looked
	r.ended = looked < r.step
	r.step = min(4*r.step, max(r.step, mostStep))
	return nil
}

// search returns the IDs of a page. It reads on in the range that is furthest behind, until it has
// enough IDs up to the point that all ranges have reached, or has read enough rows. So if an index
// serves f, the cost depends on the matches, not on the open rows. next is the last ID passed, 0 at
// the end.
func (a *Admin) search(ctx context.Context, f Filter, after int64, limit, look int, of ...Status) (ids []int64, next int64, err error) {
	if err := cmp.Or(f.validate(), validPage(limit)); err != nil {
		return nil, 0, err
	}
	consumers, err := a.matching(ctx, f)
	if err != nil {
		return nil, 0, err
	}
	var all []*reach
	for _, c := range consumers {
		all = append(all, a.reaches(c, f, after, limit+1, of...)...)
	}
	for _, r := range all {
		if err := a.read(ctx, r); err != nil {
			return nil, 0, err
		}
	}
	for {
		ids, behind, looked := gather(all)
		switch {
		case behind == nil && len(ids) <= limit:
			return ids, 0, nil
		case len(ids) >= limit:
			return ids[:limit], ids[limit-1], nil
		case looked >= look:
			return ids, behind.at, nil
		}
		behind.step = min(behind.step, look-looked)
		if err := a.read(ctx, behind); err != nil {
			return nil, 0, err
		}
	}
}

// gather returns the IDs up to the point that all ranges have reached, and the unfinished range
// that is furthest behind, nil if there is none.
func gather(all []*reach) (ids []int64, behind *reach, looked int) {
	for _, r := range all {
		looked += r.looked
		ids = append(ids, r.found...)
		if !r.ended && (behind == nil || cmp.Less(r.at, behind.at)) {
			behind = r
		}
	}
	slices.Sort(ids)
	if behind == nil {
		return ids, nil, looked
	}
	known, _ := slices.BinarySearch(ids, behind.at+1)
	return ids[:known], behind, looked
}
