package outbox

import (
	"time"

	"github.com/millrace-go/millrace/internal/database"
)

const (
	// sweepEvery is the pause between two sweeps: it bounds the delay of a message whose
	// transaction was open for longer than the horizon.
	sweepEvery = time.Second
	// sweepRest is the least pause after a sweep in multiples of it. It passes all rows that were
	// deleted while somebody's transaction can still see them, and no other look runs meanwhile.
	sweepRest = 9
	// longSweep is how long a sweep runs at least that was cut off, by lookTimeout or by a timeout of
	// the server's: the next would be, too.
	longSweep = time.Second
	// longestPause is the longest after a look that failed.
	longestPause = 5 * time.Second
)

// rest decides when to sweep next. A single sweep may have waited for a connection, or for a server
// that was away, so it takes two for a long rest.
func (r *reader) rest(took time.Duration, now time.Time) {
	pause := max(sweepEvery, sweepRest*min(took, r.swept))
	r.swept = took
	r.sweepAt, r.floor.rare = now.Add(pause), pause > 5*sweepEvery
}

// readFailed logs a failed look and makes the next one wait, longer with each failure.
func (p *pump) readFailed(now time.Time, r *reading) {
	rd := &p.reader
	rd.failures++
	rd.most = max(min(rd.most, p.config.Batch)/2, 1) // it may have been too much
	if tellsAgain(&rd.toldAt, rd.failures) {
		p.log.Error("outbox: the relay cannot read the outbox; retrying", database.Explain(r.err), nil)
	}
	rd.hungry, rd.tail = true, tail{}
	took := now.Sub(r.began)
	cut := r.epoch == rd.epoch && took > longSweep
	switch {
	case cut && r.aside:
		rd.floor.recall(r.began) // new messages are read all the same
		rd.rest(took, now)
		p.noteDue(r)
		p.tookHeads(r)
	case cut && rd.floor.rare: // as the sweeps are, which rest
	default: // the next answer may be of another server
		rd.floor.drop(now)
		rd.sweepAt = time.Time{}
	}
	rd.lookAt = now.Add(growing(rd.failures, 100*time.Millisecond, longestPause))
	p.fail(r.err)
	p.failsAgain(r, now)
}

// spell is failures of one kind of look, without a success of that kind in between.
type spell struct {
	since time.Time // zero while none of them counts
	last  time.Time
	cuts  int // looks that were cut off, after which the next one found less
}

// failsAgain has RelayBatch give up once a kind of look has failed for Config.Drain. A look that was
// cut off does not count while the next one can find less. Nor does the time for which none began,
// with full hands for instance: it takes three failures, or one that lasts.
func (p *pump) failsAgain(r *reading, now time.Time) {
	s := &p.reader.failing[r.kind]
	if idle := r.began.Sub(s.last) - min(longestPause, p.config.Drain/2); !s.since.IsZero() && idle > 0 {
		s.since = s.since.Add(idle)
	}
	s.last = now
	if now.Sub(r.began) > longSweep && r.limit > 1 && 1<<s.cuts <= p.config.Batch {
		s.cuts++
		s.since = time.Time{}
		return
	}
	p.beats(&s.since, now)
}
