package outbox

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/secret"
)

// ledger is the results of letters that the relay has yet to write to the table.
type ledger struct {
	number   int
	sent     []dialect.Row
	aside    []dialect.Aside
	postpone []postponed
	hold     []*letter
	released map[int64]bool // keys that nothing blocks once the rest is written
}

// postponed are letters that are retried without an attempt spent.
type postponed struct {
	letters []dialect.Row
	delay   time.Duration
	reason  string
}

func newLedger(number int) *ledger { return &ledger{number: number, released: make(map[int64]bool)} }

func (l *ledger) release(key int64) { l.released[key] = true }

func (l *ledger) empty() bool {
	return len(l.sent)+len(l.aside)+len(l.postpone)+len(l.hold)+len(l.released) == 0
}

// letters are the ids of letters that leave the window when the ledger is written.
func (l *ledger) letters() []int64 {
	rows := slices.Clone(l.sent)
	for _, p := range l.postpone {
		rows = append(rows, p.letters...)
	}
	for _, h := range l.hold {
		rows = append(rows, h.row())
	}
	ids := make([]int64, 0, len(rows)+len(l.aside))
	for _, r := range rows {
		ids = append(ids, r.ID)
	}
	for _, a := range l.aside {
		ids = append(ids, a.ID)
	}
	return ids
}

// soonest returns how long after the writing the first of the letters is due for a retry.
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

// statement writes one part of a ledger.
type statement struct {
	query string
	args  []any
	rows  int // how many it must change
}

// statements returns the ledger as SQL. It sets heads aside before it holds back the messages
// behind them: if the relay died between the two, another one would find those held back by
// nothing, and send them.
func (l *ledger) statements(d *tables, token int64, retention time.Duration) []statement {
	var all []statement
	add := func(rows int, query string, args ...any) {
		all = append(all, statement{query, append(args, token), rows})
	}
	for _, p := range l.postpone {
		add(len(p.letters), d.sql.Postpone, dialect.Pairs(p.letters), p.delay.Microseconds(), p.reason)
	}
	for rest := l.aside; len(rest) > 0; { // in their order: a later one of a key never before an earlier one
		now := asideAtOnce(rest)
		rest = rest[len(now):]
		add(len(now), d.sql.SetAside, dialect.Asides(now))
	}
	if len(l.hold) > 0 {
		rows := make([]dialect.Row, 0, len(l.hold))
		for _, h := range l.hold {
			rows = append(rows, h.row())
		}
		add(len(rows), d.sql.HoldBack, dialect.Pairs(rows))
	}
	switch {
	case len(l.sent) == 0:
	case retention == 0:
		add(len(l.sent), d.sql.DeleteSent, dialect.Pairs(l.sent))
	default:
		if retention == Forever {
			retention = 100 * 365 * 24 * time.Hour
		}
		add(len(l.sent), d.sql.KeepSent, dialect.Pairs(l.sent), retention.Microseconds())
	}
	return all
}

// asideBytes is the size of a statement that sets messages aside: a megabyte is the smallest packet that operators leave to
// MySQL and MariaDB, and a driver that puts arguments into the text escapes the quotes in it.
const asideBytes = 1 << 19

// asideAtOnce returns as many of the first as one statement carries, and at least one.
func asideAtOnce(all []dialect.Aside) []dialect.Aside {
	n, size := 0, 0
	for n < len(all) {
		size += 200 + 6*len(all[n].Error) // JSON writes some bytes as \u003c
		if n > 0 && size > asideBytes {
			break
		}
		n++
	}
	return all[:n]
}

// flusher writes ledgers, one at a time; results that come meanwhile go into the next.
type flusher struct {
	done     chan *flush
	busy     bool
	written  int    // number of the last ledger in the table
	failed   *flush // to be continued
	failures int
	toldAt   time.Time // when a failure was last logged
	retryAt  time.Time
	failing  time.Time // since when; zero where the last write did not fail
	beaten   bool      // [pump.beats], by failing
}

// flush is a ledger on its way into the table. Each statement commits by itself: a transaction
// of several, left open by a relay that froze, would lock rows that others work on. If a relay
// dies in between, the next one finds keys that nothing blocks, or sends some messages again.
type flush struct {
	ledger     *ledger
	statements []statement // those that are left
	doubtful   bool        // the first of them may have been carried out, and its answer lost
	missing    int         // rows that somebody else has changed
	unsure     bool        // or may have: a doubtful statement did not change all of its rows
	err        error
}

// flush writes the ledger if there is something in it.
func (p *pump) flush(ctx context.Context) {
	f := &p.flusher
	if f.busy || p.lease.doubtful() || f.failures > 0 && time.Now().Before(f.retryAt) {
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
	p.beside("the writing of results", func() error { return work.write(ctx, p.tables) }, func(err error) {
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
		if f.doubtful {
			f.unsure = f.unsure || int(n) < s.rows
		} else {
			f.missing += s.rows - int(n)
		}
		f.doubtful, f.statements = false, f.statements[1:]
	}
	return nil
}

// flushed lets go of the letters of a written ledger. If rows are missing, it first waits for the
// keeper to find that the relay still has its lease.
func (p *pump) flushed(f *flush) {
	p.flusher.busy = false
	if f.err != nil {
		p.flushFailed(f)
		return
	}
	p.flusher.failures = 0
	p.flusher.failing, p.flusher.beaten = time.Time{}, false
	if f.missing > 0 {
		p.missed(f)
	}
	if f.missing > 0 || f.unsure {
		if p.lease.valid() { // keeps the letters in hand, or else it would find and send them again
			f.missing, f.unsure, p.flusher.failed = 0, false, f
			p.lease.doubt()
			return
		}
		p.cutOff = true
	}
	p.flusher.written = f.ledger.number
	for _, id := range f.ledger.letters() {
		p.letGo(id)
	}
	if delay, some := f.ledger.soonest(); some {
		p.dueIn(time.Now(), delay)
	}
	for key := range f.ledger.released {
		if p.blocked[key].ledger <= f.ledger.number { // or else it is blocked anew
			p.open(key)
		}
	}
}

// missed logs rows that an operator has changed, or another relay because this one lost its lease.
func (p *pump) missed(f *flush) {
	p.log.Error("outbox: messages were changed by someone else while the relay had them", errChanged,
		watermill.LogFields{"count": f.missing})
}

var errChanged = errors.New("they may have been sent twice, with the same UUIDs")

func (p *pump) flushFailed(f *flush) {
	fl := &p.flusher
	fl.failures++
	if tellsAgain(&fl.toldAt, fl.failures) {
		p.log.Error("outbox: the relay could not record what it published; retrying", database.Explain(f.err), nil)
	}
	fl.failed, f.doubtful = f, true
	fl.retryAt = time.Now().Add(growing(fl.failures, 100*time.Millisecond, 5*time.Second))
	p.fail(f.err)
	fl.beaten = p.beats(&fl.failing, time.Now())
}

// againEvery is the pause between two log lines about a failure that lasts.
const againEvery = 30 * time.Second

// tellsAgain reports whether to log a failure: the first, and one each againEvery while it lasts.
func tellsAgain(toldAt *time.Time, failures int) bool {
	if failures > 1 && time.Since(*toldAt) < againEvery {
		return false
	}
	*toldAt = time.Now()
	return true
}

// growing is the n-th of a series of pauses that double from first to longest, with jitter.
func growing(n int, first, longest time.Duration) time.Duration {
	pause := min(first<<min(n-1, 30), longest)
	if pause <= 0 {
		pause = longest
	}
	return pause/2 + rand.N(pause/2+1) //nolint:gosec // jitter needs no secrecy
}

// fail keeps the first failure for RelayBatch.
func (p *pump) fail(err error) {
	if p.once && p.failure == nil {
		p.failure = database.Explain(err)
	}
}

// text makes an error fit a text column. Whoever reads that column may not be allowed to see passwords.
func text(err error) string { return cut(secret.WithoutCredentials(err.Error()), 2000) }

func cut(s string, most int) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "?"), "\x00", "?")
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
