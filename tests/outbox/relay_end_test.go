package outbox_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

var relayEndBodies = []testdb.Body{
	{Name: "a relay that is stopped", Why: "it finishes what is on its way, takes up nothing more, and loses nothing", Run: func(t *testing.T, db *testdb.DB) {
		p, b, g := newPost(t, db), newStrict(t), newGate()
		b.before = g.wait
		all := p.store("orders", append(b.letters("k", 30), b.letters("", 5)...)...)
		relay := p.relayTo(b, func(c *outbox.RelayConfig) { c.Lanes, c.Drain, c.Lease = 1, time.Hour, 15*time.Second })
		<-g.entered
		relay.tell()
		late := p.store("orders", b.letters("", 1)...)
		p.awaitBeat()
		p.awaitBeat() // it has heard that by then
		close(g.open)
		require.NoError(t, relay.stop())
		assert.Len(t, b.counts(), 6, "the call that was on its way, and no other")
		assert.Equal(t, 36-6, p.rows())
		for _, r := range p.table() {
			assert.Equal(t, rowPending, r.Status)
			assert.Zero(t, b.counts()[r.UUID])
		}
		p.relayTo(b)
		p.sentOnce(b, append(all, late...))
	}},
	{Name: "a relay that cannot finish", Why: "it says so after Drain, and what it did not see confirmed is sent again", Run: func(t *testing.T, db *testdb.DB) {
		p, b, g := newPost(t, db), newStrict(t), newGate()
		b.before = g.wait
		relay := p.newRelay(b, func(c *outbox.RelayConfig) { c.Lanes, c.Drain = 1, 50*time.Millisecond })
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- relay.Run(ctx) }()
		all := p.store("orders", b.letters("k", 3)...)
		<-g.entered
		stop()
		require.ErrorContains(t, <-ended, "within Drain")
		assert.Equal(t, 3, p.rows())
		assert.Zero(t, p.leaseEnds(), "its shards are free")
		close(g.open)
		p.relayTo(b)
		p.allSent(b, all)
		for id, n := range b.counts() {
			assert.LessOrEqual(t, n, 2, id)
		}
	}},
	{Name: "a relay whose registration has no answer", Why: "the others would leave it a share for as long as a lease", Run: func(t *testing.T, db *testdb.DB) {
		p, b := newPost(t, db), newStrict(t)
		if db.Dialect == "mysql" {
			db = db.Open(t, testdb.Params("interpolateParams", "true")) // else the answer to a prepared statement cannot be lost
		}
		pool := faults.Open(t, db)
		relays := func() int { return db.Count(t, `SELECT COUNT(*) FROM millrace_outbox_relays`) }
		var once sync.Once
		const registration = "INSERT INTO millrace_outbox_relays"
		onRegistration := func(do func() error) {
			once = sync.Once{}
			pool.Set(faults.Plan{After: faults.At(registration, func() (err error) {
				once.Do(func() { err = do() })
				return err
			})})
		}
		long := func(c *outbox.RelayConfig) { c.Lease = time.Hour }
		onRegistration(func() error { return errRefused })
		relay := start(t, p.relayOn(pool.DB, b, long))
		p.sentOnce(b, p.store("orders", b.letters("k", 3)...))
		assert.Equal(t, 1, relays())
		require.NoError(t, relay.stop())

		ctx, stop := context.WithCancel(t.Context())
		onRegistration(func() error { stop(); return ctx.Err() })
		require.NoError(t, p.relayOn(pool.DB, b, long).Run(ctx))
		assert.Zero(t, relays())

		ctx, stop = context.WithCancel(t.Context())
		registered := false
		pool.Set(faults.Plan{
			Before: faults.At(registration, func() error { stop(); return nil }),
			After:  faults.At(registration, func() error { registered = true; return nil }),
		})
		require.NoError(t, p.relayOn(pool.DB, b, long).Run(ctx))
		assert.True(t, registered, "what is cut off may reach the database after it was taken back")
		assert.Zero(t, relays())
	}},
	{Name: "a publisher that takes longer than the lease", Why: "the lease is extended meanwhile, so no other relay sends the same", Run: func(t *testing.T, db *testdb.DB) {
		p, b, g := newPost(t, db), newStrict(t), newGate()
		short := func(c *outbox.RelayConfig) { c.Lease = 20 * time.Second } // which a busy machine must extend in time
		b.before = g.wait
		var all []string
		for i := range 20 {
			all = append(all, p.store("orders", b.letters(fmt.Sprintf("k%d", i), 2)...)...)
		}
		p.relayTo(b, short)
		<-g.entered
		began := p.leaseEnds()
		other := newStrict(t)
		p.relayTo(other, short)
		rig.Eventually(p, "the lease is extended past its first end", func() bool {
			return p.leaseEnds() > began+5_000_000
		})
		assert.Empty(t, other.counts(), "no shard is given up while its messages are on their way")
		close(g.open)
		rig.Eventually(p, "the outbox is empty", func() bool { return p.rows() == 0 })
		counts := b.counts()
		for id, n := range other.counts() {
			counts[id] += n
		}
		for _, id := range all {
			assert.Equal(t, 1, counts[id])
		}
	}},
}

// gate holds calls of a broker up.
type gate struct {
	once    sync.Once
	entered chan struct{} // a call waits
	open    chan struct{}
}

func newGate() *gate { return &gate{entered: make(chan struct{}), open: make(chan struct{})} }

func (g *gate) wait() {
	g.once.Do(func() { close(g.entered) })
	<-g.open
}

// awaitBeat waits until a relay has extended its lease.
func (p *post) awaitBeat() {
	p.Helper()
	before := p.leaseEnds()
	rig.Eventually(p, "the lease is extended", func() bool { return p.leaseEnds() > before })
}

// leaseEnds is when the last lease of a relay ends.
func (p *post) leaseEnds() (until int64) {
	p.Helper()
	require.NoError(p, p.db.GetContext(p.Context(), &until, `SELECT COALESCE(MAX(until), 0) FROM millrace_outbox_relays`))
	return until
}
