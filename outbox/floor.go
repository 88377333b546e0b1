package outbox

import (
	"slices"
	"time"
)

// horizon is for how long a transaction may stay open after it stored a message, before it
// counts on a sweep: longer than a handler's by default. Where no message has an order,
// only the delay of a sweep is at stake, and a short horizon costs less.
const (
	horizon        = 30 * time.Second
	horizonUnkeyed = 2 * time.Second
)

// floor is the id up to which a message can only be pending if its transaction was open
// for longer than a horizon: reading starts behind it, past rows deleted lately.
type floor struct {
	marks []mark
	keyed time.Time // when a message with an order was last seen
}

type mark struct {
	at time.Time
	id int64
}

// seen notes the greatest id of a reading.
func (f *floor) seen(now time.Time, id int64) {
	if n := len(f.marks); n > 0 && (f.marks[n-1].id >= id || now.Sub(f.marks[n-1].at) < time.Second) {
		return
	}
	f.marks = append(f.marks, mark{now, id})
}

// lacks reports whether a reading found messages with an order, the first for long, and
// began behind a floor that does not wait for those: earlier ones may lie below it.
func (f *floor) lacks(r *reading, now time.Time) bool {
	if r.after == 0 || f.isKeyed(now) || !slices.ContainsFunc(r.letters, func(l *letter) bool { return l.keyed }) {
		return false
	}
	f.keyed = now
	return true
}

// isKeyed reports whether messages have an order.
func (f *floor) isKeyed(now time.Time) bool { return now.Sub(f.keyed) < 10*time.Minute }

// id returns the floor, where looks have gone on.
func (f *floor) id(now time.Time) int64 {
	back := horizonUnkeyed
	if f.isKeyed(now) {
		back = horizon
	}
	for len(f.marks) > 1 && now.Sub(f.marks[1].at) > 2*horizon {
		f.marks = f.marks[1:]
	}
	return f.upTo(now.Add(-back))
}

// before returns what was the floor of messages with an order when a look began: by then all transactions were
// over that had stored something up to there. Where it is not known any more it is 0.
func (f *floor) before(began time.Time) int64 { return f.upTo(began.Add(-horizon)) }

func (f *floor) upTo(at time.Time) (id int64) {
	for _, m := range f.marks {
		if m.at.Before(at) {
			id = max(id, m.id)
		}
	}
	return id
}
