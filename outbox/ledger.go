package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/dialect"
)

// ledger is what became of letters and is still to be written.
type ledger struct {
	number   int
	sent     []int64
	aside    []dialect.Aside
	postpone []postponed
	hold     []*letter
	released map[int64]bool // keys that nothing blocks any more, once the rest is written
}

// postponed are messages that were not at fault.
type postponed struct {
	letters []int64
	delay   time.Duration
	reason  string
}

func newLedger(number int) *ledger { return &ledger{number: number, released: make(map[int64]bool)} }

func (l *ledger) release(key int64) { l.released[key] = true }

func (l *ledger) empty() bool {
	return len(l.sent)+len(l.aside)+len(l.postpone)+len(l.hold)+len(l.released) == 0
}

// letters are the ids that are out of hand once the ledger is written.
func (l *ledger) letters() []int64 {
	ids := slices.Clone(l.sent)
	for _, a := range l.aside {
		ids = append(ids, a.ID)
	}
	for _, p := range l.postpone {
		ids = append(ids, p.letters...)
	}
	for _, h := range l.hold {
		ids = append(ids, h.id)
	}
	return ids
}

// soonest returns after what time the first of the letters is to be tried again. It runs
// from the moment of writing.
func (l *ledger) soonest() (delay time.Duration, some bool) {
	note := func(d time.Duration) {
		if !some || d < delay {
			delay, some = d, true
		}
	}
	for _, p := range l.postpone {
		note(p.delay)
	}
	for _, a := range l.aside {
		if a.Status == dialect.OutboxRetry {
			note(time.Duration(a.Delay) * time.Microsecond)
		}
	}
	return delay, some
}

// statement is one line of a ledger as SQL.
type statement struct {
	query string
	args  []any
	rows  int // that must be changed
}

// statements says the ledger in SQL. Who is held back comes after the head for which it waits:
// else, if the relay dies in between, it would go out as if there was none.
func (l *ledger) statements(d *tables, token int64, retention time.Duration) []statement {
	var all []statement
	add := func(rows int, query string, args ...any) {
		all = append(all, statement{query, append(args, token), rows})
	}
	for _, p := range l.postpone {
		add(len(p.letters), d.sql.Postpone, dialect.IDs(p.letters), p.delay.Microseconds(), p.reason)
	}
	if len(l.aside) > 0 {
		add(len(l.aside), d.sql.SetAside, dialect.Asides(l.aside))
	}
	if len(l.hold) > 0 {
		ids := make([]int64, 0, len(l.hold))
		for _, h := range l.hold {
			ids = append(ids, h.id)
		}
		add(len(ids), d.sql.HoldBack, dialect.IDs(ids))
	}
	switch {
	case len(l.sent) == 0:
	case retention == 0:
		add(len(l.sent), d.sql.DeleteSent, dialect.IDs(l.sent))
	default:
		if retention == Forever {
			retention = 100 * 365 * 24 * time.Hour
		}
		add(len(l.sent), d.sql.KeepSent, dialect.IDs(l.sent), retention.Microseconds())
	}
	return all
}

// flusher writes ledgers, one at a time; what is added meanwhile joins the next.
type flusher struct {
	done     chan *flush
	busy     bool
	written  int    // number of the last ledger that is in the table
	failed   *flush // to be gone on with
	failures int
	toldAt   time.Time // of the last failure
	retryAt  time.Time
}

// flush is a ledger on its way into the table. Each statement is a transaction: one of
// several, left open by a relay that froze, would lock what others work on. Where a relay
// dies in between, who comes next finds keys that nothing blocks, or sends again what was sent.
type flush struct {
	ledger     *ledger
	statements []statement // that are left
	missing    int         // rows that somebody else changed
	err        error
}

// flush writes the ledger if there is something in it.
func (p *pump) flush(ctx context.Context) {
	f := &p.flusher
	if f.busy || f.failures > 0 && time.Now().Before(f.retryAt) {
		return
	}
	work := f.failed
	if work == nil {
		if p.ledger.empty() {
			return
		}
		work = &flush{ledger: p.ledger, statements: p.ledger.statements(p.tables, p.lease.token, p.config.Retention)}
		p.ledger = newLedger(p.ledger.number + 1)
	}
	f.busy, f.failed = true, nil
	p.beside("the writing off", func() error { return work.write(ctx, p.tables) }, func(err error) {
		work.err = err
		f.done <- work
	})
}

// write executes the statements that are left, up to the first that fails.
func (f *flush) write(ctx context.Context, d *tables) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	for len(f.statements) > 0 {
		s := f.statements[0]
		n, err := d.db.Exec(ctx, s.query, s.args...)
		if err != nil {
			return err
		}
		f.missing += s.rows - int(n)
		f.statements = f.statements[1:]
	}
	return nil
}

// flushed lets go of what is written.
func (p *pump) flushed(f *flush) {
	p.flusher.busy = false
	if f.err != nil {
		p.flushFailed(f)
		return
	}
	p.flusher.failures, p.flusher.written = 0, f.ledger.number
	if f.missing > 0 {
		p.missed(f)
	}
	for _, id := range f.ledger.letters() {
		p.letGo(id)
	}
	if delay, some := f.ledger.soonest(); some {
		p.dueIn(time.Now(), delay)
	}
	for key := range f.ledger.released {
		if p.blocked[key].ledger <= f.ledger.number { // else it is blocked anew
			p.open(key)
		}
	}
}

// missed tells of rows that were not as the relay had left them: an operator changed
// them, or another relay did, because this one lost its lease.
func (p *pump) missed(f *flush) {
	p.log.Error("outbox: messages were changed by someone else while the relay had them", errChanged,
		watermill.LogFields{"count": f.missing})
}

var errChanged = errors.New("they may have been sent twice, with the same UUIDs")

func (p *pump) flushFailed(f *flush) {
	fl := &p.flusher
	fl.failures++
	if tellsAgain(&fl.toldAt, fl.failures) {
		p.log.Error("outbox: what was published could not be written off; tried again", database.Explain(f.err), nil)
	}
	fl.failed = f
	fl.retryAt = time.Now().Add(growing(fl.failures, 100*time.Millisecond, 5*time.Second))
	p.fail(f.err)
}

// againEvery is the pause between two log lines about one thing that fails all the time.
const againEvery = 30 * time.Second

// tellsAgain reports whether to log a failure: the first, and now and then one for as long as it lasts.
func tellsAgain(toldAt *time.Time, failures int) bool {
	if failures > 1 && time.Since(*toldAt) < againEvery {
		return false
	}
	*toldAt = time.Now()
	return true
}

// fail keeps the first failure for who works once.
func (p *pump) fail(err error) {
	if p.once && p.failure == nil {
		p.failure = fmt.Errorf("outbox: relay: %w", database.Explain(err))
	}
}

// text makes an error fit a column of text.
func text(err error) string {
	const most = 2000
	s := strings.ReplaceAll(strings.ToValidUTF8(err.Error(), "?"), "\x00", "?")
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
