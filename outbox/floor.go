package outbox

import (
	"slices"
	"time"
)

// horizon is how long a transaction may stay open after it stored a message without the message
// having to wait for a sweep: longer than a handler runs by default. Where no message has an
// order key, a message below the floor is only late, and a short horizon costs less.
const (
	horizon        = 30 * time.Second
	horizonUnkeyed = 2 * time.Second
)

// floor is the id from which looks for new messages start, so that they skip lately deleted
// rows. A message below it is unread only if its transaction was open for longer than the horizon.
type floor struct {
	marks []mark
	kept  []mark    // those that were dropped, until a sweep succeeds
	keyed time.Time // when a message with an order was last seen
	rare  bool      // sweeps are, so that few messages should have to wait for one
}

type mark struct {
	at time.Time
	id int64
}

// seen notes an id that was read.
func (f *floor) seen(now time.Time, id int64) {
	if n := len(f.marks); n > 0 && (f.marks[n-1].id >= id || now.Sub(f.marks[n-1].at) < time.Second) {
		return
	}
	f.marks = append(f.marks, mark{now, id})
}

// lacks reports whether a look found keyed messages, the first for a long time, but started from
// a floor of the short horizon: earlier ones of their keys may lie below it.
func (f *floor) lacks(r *reading, now time.Time) bool {
	if r.after == 0 || f.rare || f.isKeyed(now) || !slices.ContainsFunc(r.letters, func(l *letter) bool { return l.keyed }) {
		return false
	}
	f.keyed = now
	return true
}

// isKeyed reports whether messages with an order key were seen lately.
func (f *floor) isKeyed(now time.Time) bool { return now.Sub(f.keyed) < 10*time.Minute }

// id returns the floor for a look that begins now.
func (f *floor) id(now time.Time) int64 {
	back := horizonUnkeyed
	if f.rare || f.isKeyed(now) {
		back = horizon
	}
	for len(f.marks) > 1 && now.Sub(f.marks[1].at) > 2*horizon {
		f.marks = f.marks[1:]
	}
	return f.upTo(now.Add(-back))
}

// before returns the floor of the long horizon at the time when a look began: every transaction
// that had stored a message up to there had ended by then. It is 0 where it is no longer known.
func (f *floor) before(began time.Time) int64 { return f.upTo(began.Add(-horizon)) }

// drop gives the floor up until a sweep is cut off: another server may have smaller ids.
func (f *floor) drop(now time.Time) {
	if len(f.marks) > 0 {
		f.kept = olderThan(now.Add(-horizon), f.marks)
	}
	f.marks = nil
}

// recall makes the floor what it was before it was dropped, or before a sweep began that was cut off: it
// will do as well for another server that lacks the last ids that this one had.
func (f *floor) recall(began time.Time) {
	if len(f.marks) == 0 {
		f.marks = f.kept
	}
	f.marks = olderThan(began.Add(-horizon), f.marks)
}

func olderThan(at time.Time, marks []mark) []mark {
	return slices.DeleteFunc(slices.Clone(marks), func(m mark) bool { return !m.at.Before(at) })
}

func (f *floor) upTo(at time.Time) (id int64) {
	for _, m := range f.marks {
		if m.at.Before(at) {
			id = max(id, m.id)
		}
	}
	return id
}
