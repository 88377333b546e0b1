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
	after []byte // the order key that was looked at last
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

// look finds messages that are due and stand in no line, or first in one: as many as limit or more,
// where there are some.
func (q *Queue) look(ctx context.Context, consumer int32, limit int, horizon time.Duration) (*had, error) {
	h := &had{limit: limit, ids: make(map[int64]struct{}), next: horizon}
	more, err := q.lookInFront(ctx, consumer, h)
	if err == nil && more && !h.enough() {
		err = q.lookAtHeads(ctx, consumer, h)
	}
	return h, q.store.db.Noticed(err)
}

// lookInFront looks at what is due soonest, in lines and without one, and reports whether more is due that stands in a line.
func (q *Queue) lookInFront(ctx context.Context, consumer int32, h *had) (more bool, err error) {
	var rows []struct {
		ID      int64 `db:"id"`
		Wait    int64 `db:"wait"`
		InLine  bool  `db:"in_line"`
		Blocked bool  `db:"blocked"`
	}
	most := h.next.Microseconds()
	err = q.store.db.SelectContext(ctx, &rows, q.store.dialect.Queue.SelectFront,
		consumer, most, lookedAtOnce, q.stops(), consumer, most, h.limit)
	inLine := 0
	for _, row := range rows {
		due := row.Wait <= 0
		if row.InLine && due {
			inLine++
		}
		switch {
		case !row.Blocked:
			h.add(row.ID, row.Wait)
		case due:
			h.blocked = true
		}
	}
	return inLine == lookedAtOnce, err
}

// stops reports whether a message that waits for an operator stops the line that it stands in.
func (q *Queue) stops() bool { return q.config.OnParked != Continue }

// lookAtHeads goes on from order key to order key, and begins again after the last.
func (q *Queue) lookAtHeads(ctx context.Context, consumer int32, h *had) error {
	for range lookedAt / lookedAtOnce {
		from := q.lines.reached()
		var rows []struct {
			Key  []byte        `db:"order_key"`
			ID   sql.NullInt64 `db:"id"`
			Wait sql.NullInt64 `db:"wait"` // none where nothing is ready, or the line is stopped
		}
		err := q.store.db.SelectContext(ctx, &rows, q.store.dialect.Queue.SelectHeads,
			q.stops(), consumer, from, lookedAtOnce)
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
