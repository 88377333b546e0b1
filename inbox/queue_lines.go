package inbox

import (
	"bytes"
	"context"
	"database/sql"
	"sync"
	"time"
)

// lines is how far a queue with an OrderKey looked. The messages of a key stand in line, and
// only the first can be had. Where what is due soonest all stands behind others, the queue
// goes from key to key, so a look costs the same however many messages stand in the lines.
type lines struct {
	mu    sync.Mutex
	after []byte    // the order key that was looked at last
	free  time.Time // when to look again for messages without one
}

// Bounds of a look, in messages or order keys.
const (
	lookedAtOnce = 256
	lookedAt     = 4 * lookedAtOnce
)

// had is what a look found.
type had struct {
	limit   int
	ids     map[int64]struct{} // of messages that are due
	next    time.Duration      // until another one is
	blocked bool               // some are due that stand behind others
}

func (h *had) add(id, wait int64) {
	if wait > 0 {
		h.next = min(h.next, time.Duration(wait)*time.Microsecond)
		return
	}
	h.ids[id] = struct{}{}
}

func (h *had) enough() bool { return len(h.ids) >= h.limit }

// look finds messages that are due and first of their order key: as many as limit or more,
// where there are some.
func (q *Queue) look(ctx context.Context, consumer int32, limit int, horizon time.Duration) (*had, error) {
	h := &had{limit: limit, ids: make(map[int64]struct{}), next: horizon}
	more, err := q.lookInFront(ctx, consumer, h)
	if err == nil && more && !h.enough() {
		err = q.lookAtHeads(ctx, consumer, h)
	}
	if err == nil && more && !h.enough() {
		err = q.lookForFree(ctx, consumer, h)
	}
	return h, q.store.db.Noticed(err)
}

// lookInFront looks at what is due soonest, and reports whether there is more that is due.
func (q *Queue) lookInFront(ctx context.Context, consumer int32, h *had) (more bool, err error) {
	var rows []struct {
		ID      int64 `db:"id"`
		Wait    int64 `db:"wait"`
		Blocked bool  `db:"blocked"`
	}
	terminal, parked := q.passed()
	err = q.store.db.SelectContext(ctx, &rows, q.store.dialect.Queue.SelectFront,
		consumer, h.next.Microseconds(), lookedAtOnce, terminal, parked)
	for _, row := range rows {
		switch due := row.Wait <= 0; {
		case !row.Blocked:
			h.add(row.ID, row.Wait)
		case due:
			h.blocked = true
		}
	}
	return len(rows) == lookedAtOnce && rows[len(rows)-1].Wait <= 0, err
}

// lookAtHeads goes on from order key to order key, and begins again after the last.
func (q *Queue) lookAtHeads(ctx context.Context, consumer int32, h *had) error {
	terminal, parked := q.passed()
	for range lookedAt / lookedAtOnce {
		from := q.lines.reached()
		var rows []struct {
			Key  []byte        `db:"order_key"`
			ID   sql.NullInt64 `db:"id"`
			Wait sql.NullInt64 `db:"wait"` // none where it waits for an operator
		}
		err := q.store.db.SelectContext(ctx, &rows, q.store.dialect.Queue.SelectHeads,
			terminal, parked, consumer, from, lookedAtOnce)
		if err != nil {
			return err
		}
		last := from
		for _, row := range rows {
			if bytes.Compare(row.Key, last) > 0 {
				last = row.Key
			}
			if row.Wait.Valid {
				h.add(row.ID.Int64, row.Wait.Int64)
			}
		}
		end := len(rows) < lookedAtOnce
		if end {
			last = nil
		}
		q.lines.reach(last)
		if h.enough() || end && len(from) == 0 {
			return nil
		}
	}
	return nil
}

// lookForFree looks for messages without an order key, as those are that were stored before
// the queue had one. What stands in line is read for it: it takes a twentieth of the time.
func (q *Queue) lookForFree(ctx context.Context, consumer int32, h *had) error {
	const share = 20
	if wait := time.Until(q.lines.nextFree()); wait > 0 {
		h.next = min(h.next, wait)
		return nil
	}
	var rows []struct {
		ID   int64 `db:"id"`
		Wait int64 `db:"wait"`
	}
	began := time.Now()
	err := q.store.db.SelectContext(ctx, &rows, q.store.dialect.Queue.SelectFree,
		consumer, h.next.Microseconds(), h.limit)
	for _, row := range rows {
		h.add(row.ID, row.Wait)
	}
	if len(rows) < h.limit {
		q.lines.putOffFree(share * time.Since(began))
	}
	return err
}

// reached returns the order key after which to go on.
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

func (l *lines) nextFree() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.free
}

func (l *lines) putOffFree(by time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.free = time.Now().Add(by)
}
