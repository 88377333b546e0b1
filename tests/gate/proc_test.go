package gate_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// proc is a process of the service that does one thing after the other, and may die at any
// call to the database: from then on nothing it says reaches the server.
type proc struct {
	*bed
	consumer string
	store    *inbox.Store
	queue    *inbox.Queue
	handler  message.HandlerFunc
	pool     *faults.Faults
	alive    context.Context //nolint:containedctx // of all that the process does
	die      context.CancelFunc

	fail  bool // the handler fails, once
	calls int
	last  int  // the call at which it dies; 0 is none
	asked bool // the server still gets that call, but the answer is lost
}

func (b *bed) proc(consumer string, gate millrace.VersionGate) *proc {
	b.Helper()
	p := &proc{bed: b, consumer: consumer, pool: faults.Open(b, b.db)}
	p.alive, p.die = context.WithCancel(b.Context())
	b.Cleanup(p.die)
	p.store = b.newStore(p.pool.DB, inbox.Config{})
	p.queue = rig.Queue(b, p.store, inbox.QueueConfig{Consumer: consumer})
	p.handler = millrace.Inbox{Store: p.store, Consumer: consumer, Options: inbox.Options{TwinWait: rig.Patience}}.Middleware(gate.Middleware(p.handle))
	p.pool.Set(faults.Plan{Before: p.before, After: p.after})
	return p
}

func (p *proc) handle(msg *message.Message) ([]*message.Message, error) {
	if err := apply(msg); err != nil {
		return nil, err
	}
	if p.fail {
		p.fail = false
		return nil, errFails
	}
	return nil, nil
}

// dieAt has the process die at the call with this number from now on, and with asked only
// when the server has done what it says.
func (p *proc) dieAt(call int, asked bool) { p.calls, p.last, p.asked = 0, call, asked }

func (p *proc) before(context.Context, string) error {
	if p.alive.Err() != nil {
		return faults.ErrLost
	}
	p.calls++
	if p.calls == p.last && !p.asked {
		p.die()
		return faults.ErrLost
	}
	return nil
}

func (p *proc) after(context.Context, string) error {
	if p.alive.Err() == nil && p.calls == p.last && p.asked {
		p.die()
	}
	if p.alive.Err() != nil {
		return faults.ErrLost
	}
	return nil
}

func (p *proc) dead() bool { return p.alive.Err() != nil }

// deliver reports whether the broker got an ack.
func (p *proc) deliver(msg *message.Message) (acked bool) {
	copied := again(msg)
	copied.SetContext(p.alive)
	_, err := p.handler(copied)
	return err == nil && !p.dead()
}

// work delivers what is due in the table, as the worker of pubsub.Durable does, and returns
// how many messages that were.
func (p *proc) work() int {
	leased, _, err := p.queue.Take(p.alive, 5, time.Second)
	if !p.dead() {
		require.NoError(p, err)
	}
	for _, l := range leased {
		msg, err := l.Message(p.alive)
		require.NoError(p, err)
		_, err = p.handler(msg)
		if p.dead() {
			return 0
		}
		if err == nil {
			err = l.Finish(p.alive)
		} else {
			err = l.Fail(p.alive)
		}
		if !p.dead() {
			require.NoError(p, err)
		}
	}
	return len(leased)
}

// later makes due what waits for a time: leases lapse, and pauses are over.
func (b *bed) later() {
	b.Helper()
	b.db.Do(b, `UPDATE millrace_messages SET due_at = 0 WHERE status IN (1, 2, 4)`)
}

// stuck counts messages that are held although their predecessor was applied.
func (b *bed) stuck() int {
	b.Helper()
	return b.count(`
		SELECT COUNT(*)
		FROM millrace_messages m
		JOIN millrace_versions v ON v.consumer = m.consumer AND v.aggregate = m.aggregate
		WHERE m.status = 7 AND m.version <= v.version + 1`)
}

// nothingLeft says that no row and no open claim remains.
func (b *bed) nothingLeft() {
	b.Helper()
	require.Zero(b, b.count(`SELECT COUNT(*) FROM millrace_messages`), "open messages")
	require.Zero(b, b.count(`SELECT COUNT(*) FROM millrace_claims WHERE result = 0`), "open claims")
}

// tuned returns another pool on the database: SQLite does not wait for the disk, and MySQL's
// driver asks the server once for each statement, so that faults sees them all.
func tuned(t testing.TB, db *testdb.DB) *testdb.DB {
	t.Helper()
	switch db.Dialect {
	case "mysql":
		return db.Open(t, testdb.Params("interpolateParams", "true"))
	case "sqlite":
		return db.Open(t, testdb.Params("_pragma", "synchronous(OFF)"))
	}
	return db
}
