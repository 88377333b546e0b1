package inbox

import (
	"bytes"
	"context"
	"database/sql"
	"sync"
	"time"
)

// lines is how far a queue with an OrderKey has searched. The messages of an order key stand in
// line, and only the head of each line is deliverable. If the messages that are due soonest all
// stand behind others, the queue goes from order key to order key, so a search costs the same
// however long the lines are.
type lines struct {
	mu    sync.Mutex
	after []byte // the last order key that was searched
}

// Bounds of a search, in messages or order keys.
const (
	searchPage  = 256
	searchLimit = 4 * searchPage
)

// deliverable is the result of a search.
type deliverable struct {
	limit   int
	ids     map[int64]struct{} // messages that are due
	next    time.Duration      // until the next one is due
	blocked bool               // messages are due that stand behind others
}

func (d *deliverable) add(id, wait int64) {
	if wait > 0 {
		d.next = min(d.next, time.Duration(wait)*time.Microsecond)
		return
	}
	d.ids[id] = struct{}{}
}

func (d *deliverable) enough() bool { return len(d.ids) >= d.limit }

// search finds messages that are due and stand in no line or at the head of one. It stops once it
// has found limit of them.
func (q *Queue) search(ctx context.Context, consumer int32, limit int, horizon time.Duration) (*deliverable, error) {
	d := &deliverable{limit: limit, ids: make(map[int64]struct{}), next: horizon}
	more, err := q.searchFront(ctx, consumer, d)
	if err == nil && more && !d.enough() {
		err = q.searchHeads(ctx, consumer, d)
	}
	return d, q.store.db.Noticed(err)
}

// searchFront reads the messages that are due soonest, in lines and outside, and reports whether
// more of those in lines may be due.
func (q *Queue) searchFront(ctx context.Context, consumer int32, d *deliverable) (more bool, err error) {
	var rows []struct {
		ID      int64 `db:"id"`
		Wait    int64 `db:"wait"`
		InLine  bool  `db:"in_line"`
		Blocked bool  `db:"blocked"`
	}
	most := d.next.Microseconds()
	err = q.store.db.SelectContext(ctx, &rows, q.store.dialect.Queue.SelectFront,
		consumer, most, searchPage, q.stops(), consumer, most, d.limit)
	inLine := 0
	for _, row := range rows {
		due := row.Wait <= 0
		if row.InLine && due {
			inLine++
		}
		switch {
		case !row.Blocked:
			d.add(row.ID, row.Wait)
		case due:
			d.blocked = true
		}
	}
	return inLine == searchPage, err
}

// stops reports whether a message that waits for an operator stops its line.
func (q *Queue) stops() bool { return q.config.OnParked != Continue }

// searchHeads goes from order key to order key, beginning where the last search ended, and begins
// again with the first after the last.
func (q *Queue) searchHeads(ctx context.Context, consumer int32, d *deliverable) error {
	for range searchLimit / searchPage {
		from := q.lines.reached()
		var rows []struct {
			Key  []byte        `db:"order_key"`
			ID   sql.NullInt64 `db:"id"`
			Wait sql.NullInt64 `db:"wait"` // NULL if no message is ready or the line is stopped
		}
		err := q.store.db.SelectContext(ctx, &rows, q.store.dialect.Queue.SelectHeads,
			q.stops(), consumer, from, searchPage)
		if err != nil {
			return err
		}
		last := from
		for _, row := range rows {
			if bytes.Compare(row.Key, last) > 0 {
				last = row.Key
			}
			if row.Wait.Valid {
				d.add(row.ID.Int64, row.Wait.Int64)
			}
		}
		end := len(rows) < searchPage
		if end {
			last = nil
		}
		q.lines.reach(last)
		if d.enough() || end && len(from) == 0 {
			return nil
		}
	}
	return nil
}

// reached returns the order key after which the search continues.
func (l *lines) reached() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.after == nil {
		return []byte{} // not NULL
	}
	return l.after
}

func (l *lines) reach(key []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.after = key
}
