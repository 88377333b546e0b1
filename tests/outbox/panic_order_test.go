package outbox_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestPanicOrderConformance(t *testing.T) {
	t.Parallel()
	testdb.Conformance(t, panicOrderBodies)
}

var panicOrderBodies = []testdb.Body{
	// has the driver panic in a heartbeat, while another relay waits for shards.
	{Name: "a statement of the keeper that panics while a message is with the broker", Why: "the relay keeps its shards: whoever has them sends the same", Run: func(t *testing.T, db *testdb.DB) {
		p, b, g := newPost(t, db), newStrict(t), newGate()
		b.before = g.wait
		pool := faults.Open(t, db)
		pool.SetMaxOpenConns(50) // database/sql loses the connection of a query that panics
		short := func(c *outbox.RelayConfig) { c.Lease = 15 * time.Second }
		relay := p.relayOn(pool.DB, b, asItComes, short, func(c *outbox.RelayConfig) { c.Poll = 50 * time.Millisecond })
		var all []string
		for i := range 20 {
			all = append(all, p.store("orders", b.letters(fmt.Sprintf("k%d", i), 2)...)...)
		}
		running := start(t, relay)
		<-g.entered
		var panics atomic.Int64
		pool.Set(faults.Plan{Before: func(_ context.Context, call string) error {
			if says(call, beats...) && panics.Add(1) == 1 {
				panic("the driver")
			}
			return nil
		}})
		rig.Eventually(p, "the driver panics", func() bool { return panics.Load() > 0 })
		p.awaitBeat()
		other, looks := newStrict(t), newCounted(t, db)
		start(t, p.relayOn(looks.DB, other, short))
		looks.await(t, "FROM millrace_outbox_shards", 4)
		assert.Empty(t, other.counts())
		close(g.open)
		rig.Eventually(p, "the outbox is empty", func() bool { return p.rows() == 0 })
		require.NoError(t, running.stop())
		counts := b.counts()
		for id, n := range other.counts() {
			counts[id] += n
		}
		for _, id := range all {
			assert.Equal(t, 1, counts[id])
		}
		assert.Positive(t, relay.Panics())
	}},
	{Name: "an error whose methods panic later", Why: "it is asked once, and holds nobody up", Run: func(t *testing.T, db *testdb.DB) {
		p, b, seen := newPost(t, db), newMemoryBroker(), &events{}
		b.refuse = func(_ string, msg *message.Message) error {
			if string(msg.Payload) == bad {
				return later{&atomic.Int64{}, trips[msg.Metadata.Get("how")]}
			}
			return nil
		}
		var poison []*message.Message
		for how := range trips {
			msg := message.NewMessage(how, []byte(bad))
			msg.Metadata.Set("how", how)
			poison = append(poison, msg)
		}
		ids := p.store("orders", poison...)
		r := p.relayTo(b, func(c *outbox.RelayConfig) {
			c.MaxAttempts, c.MinBackoff, c.MaxBackoff = 2, time.Millisecond, 10*time.Millisecond
			seen.observe(c)
		})
		for p.row(ids[0]).Status != rowParked || p.row(ids[1]).Status != rowParked {
			b.awaitAll(p, p.send("orders", "", 1))
		}
		require.NoError(t, r.stop())
		assert.Zero(t, r.Panics())
		for _, e := range seen.of("parked") {
			var inner later
			assert.ErrorAs(t, e.Err, &inner)
		}
	}},
}

// later is an error that answers once.
type later struct {
	asked *atomic.Int64
	trip  func()
}

func (e later) Error() string {
	if e.asked.Add(1) > 1 {
		e.trip()
	}
	return "refused"
}
