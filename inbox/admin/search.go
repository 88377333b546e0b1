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
	Messages []Message // without payloads

	// Next is the ID after which the next page begins, 0 at the end. If a page has a Next but fewer
	// messages than were asked for, the search stopped before the end of the list.
	Next int64
}

// Search lists open messages that f matches, without payloads and in the order they were stored: at
// most limit messages (up to MaxPage) after the row with the given ID, which is 0 to begin. If no
// index serves f, it reads about look rows at most and says where to continue; 0 sets no limit.
func (a *Admin) Search(ctx context.Context, f Filter, after int64, limit, look int) (Page, error) {
	return a.searchPage(ctx, f, after, limit, look, upwards)
}

// SearchBack is [Admin.Search] in the opposite order, the newest message first: it lists messages before the row with
// the given ID, which is 0 to begin, and Next is the ID before which the next page begins.
func (a *Admin) SearchBack(ctx context.Context, f Filter, before int64, limit, look int) (Page, error) {
	if before == 0 {
		before = math.MaxInt64
	}
	page, err := a.searchPage(ctx, f, before, limit, look, downwards)
	slices.Reverse(page.Messages)
	return page, err
}

func (a *Admin) searchPage(ctx context.Context, f Filter, from int64, limit, look int, to direction) (page Page, err error) {
	switch {
	case look < 0:
		err = fmt.Errorf("read %d rows: the number is negative", look)
	case look == 0:
		look = math.MaxInt
	}
	var ids []int64
	if err == nil {
		ids, page.Next, err = a.search(ctx, f, from, limit, look, to, stored.Open...)
	}
	if err == nil {
		page.Messages, err = a.readPage(ctx, ids, a.rows.Dialect.Remedy.ListOutlines, a.outline)
	}
	if err != nil {
		return Page{}, fmt.Errorf("inbox: search messages: %w", database.Explain(err))
	}
	return page, nil
}

// Messages returns the open messages with these IDs, without payloads and in the order they were stored. It leaves out
// those that are not open, and rows that cannot be read.
func (a *Admin) Messages(ctx context.Context, ids ...int64) (found []Message, err error) {
	consumers, err := a.matching(ctx, Filter{})
	var rows []stored.Message
	if err == nil {
		rows, _, err = a.listed(ctx, a.rows.Dialect.Remedy.ListOutlines, ids)
	}
	for _, row := range rows {
		if !slices.ContainsFunc(consumers, func(c stored.Consumer) bool { return c.ID == row.Consumer }) {
			continue // of another namespace
		}
		var m Message
		if m, err = a.outline(ctx, row); err != nil {
			break
		}
		found = append(found, m)
	}
	if err != nil {
		return nil, fmt.Errorf("inbox: look for messages: %w", database.Explain(err))
	}
	return found, nil
}

// direction is the order of a search: IDs times the direction grow.
type direction int64

const (
	upwards   direction = 1
	downwards direction = -1
)

// reach is a range of an index, read in the order of the IDs. Its IDs are multiplied by its direction, so that they
// grow.
type reach struct {
	statement string
	args      []any // of the statement, without the start and the limit
	to        direction
	at        int64   // read up to this ID …
	ended     bool    // … and this was all
	found     []int64 // the matching IDs
	looked    int
	step      int // how many rows to read next
}

// reaches returns the ranges in which f may match messages of c: a group of errors, or each state;
// if f names no state, the states of.
func (a *Admin) reaches(c stored.Consumer, f Filter, from int64, step int, to direction, of ...Status) (all []*reach) {
	states, remedy := f.statuses(of...), &a.rows.Dialect.Remedy
	byGroup, byStatus := remedy.SearchGroup, remedy.SearchStatus
	if to == downwards {
		byGroup, byStatus = remedy.SearchGroupBack, remedy.SearchStatusBack
	}
	at := from * int64(to)
	if f.ErrorGroup != 0 {
		args := append(f.bounds(), states[0], states[len(states)-1], c.ID, f.ErrorGroup)
		return []*reach{{statement: byGroup, args: args, to: to, at: at, step: step}}
	}
	for _, status := range states {
		args := append(f.bounds(), c.ID, status)
		all = append(all, &reach{statement: byStatus, args: args, to: to, at: at, step: step})
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
	to := int64(r.to)
	if err := sqlx.SelectContext(ctx, a.rows.Reader(ctx), &rows, r.statement, append(slices.Clone(r.args), to*r.at, r.step)...); err != nil {
		return err
	}
	looked := 0
	for _, row := range rows {
		if row.Found != 0 {
			r.found = append(r.found, to*row.Found)
		}
		r.at, looked = max(r.at, to*row.Last), looked+row.Looked
	}
	r.looked += looked
	r.ended = looked < r.step
	r.step = min(4*r.step, max(r.step, mostStep))
	return nil
}

// search returns the IDs of a page, in the order of its direction. It reads on in the range that is furthest behind, until it has
// enough IDs up to the point that all ranges have reached, or has read enough rows. So if an index
// serves f, the cost depends on the matches, not on the open rows. next is the last ID passed, 0 at
// the end.
func (a *Admin) search(
	ctx context.Context, f Filter, from int64, limit, look int, to direction, of ...Status,
) (ids []int64, next int64, err error) {
	ids, next, err = a.reached(ctx, f, from, limit, look, to, of...)
	for i := range ids {
		ids[i] *= int64(to)
	}
	return ids, next * int64(to), err
}

func (a *Admin) reached(
	ctx context.Context, f Filter, from int64, limit, look int, to direction, of ...Status,
) (ids []int64, next int64, err error) {
	if err := cmp.Or(f.validate(), validPage(limit)); err != nil {
		return nil, 0, err
	}
	consumers, err := a.matching(ctx, f)
	if err != nil {
		return nil, 0, err
	}
	var all []*reach
	for _, c := range consumers {
		all = append(all, a.reaches(c, f, from, limit+1, to, of...)...)
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
