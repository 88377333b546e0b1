package outbox_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

var relayBatchBodies = []testdb.Body{
	{Name: "a batch", Why: "RelayBatch sends what is there, says how much, and ends", Run: strictly(func(t *testing.T, p *post, b *strict) {
		relay := p.newRelay(b, func(c *outbox.RelayConfig) { c.Batch = 5 })
		batch := func() int {
			n, err := relay.RelayBatch(t.Context())
			require.NoError(t, err)
			return n
		}
		assert.Zero(t, batch(), "there is nothing")
		all := p.store("orders", append(b.letters("k", 12), b.letters("", 20)...)...)
		assert.Equal(t, 32, batch())
		b.once(all)
		assert.Zero(t, p.rows())
		assert.Zero(t, batch())

		// Who stores all the time does not keep it from ending.
		stop, stored := make(chan struct{}), make(chan []string)
		go func() { stored <- p.storeUntil(b, "", stop) }()
		sent := batch() + batch()
		close(stop)
		ids := <-stored
		assert.Len(t, ids, sent+batch())
		b.once(ids)
		assert.Zero(t, p.rows())
	})},
	{Name: "a batch with failures", Why: "the error tells of the first failure; the rest is done all the same", Run: strictly(func(t *testing.T, p *post, b *strict) {
		b.way = partial
		msgs := append(b.letters("k", 2), b.letters("", 5)...)
		b.refusing(refuses(errRefused, msgs[0].UUID))
		relay := p.newRelay(b, func(c *outbox.RelayConfig) { c.MaxAttempts, c.MinBackoff = 2, time.Millisecond; c.Lanes = 1 })
		p.store("orders", msgs...)
		n, err := relay.RelayBatch(t.Context())
		assert.Equal(t, 5, n)
		require.ErrorIs(t, err, errRefused)
		assert.ErrorContains(t, err, fmt.Sprintf(`message %q to topic "orders"`, msgs[0].UUID))
		assert.Equal(t, rowRetry, p.row(msgs[0].UUID).Status, "it is for a later call")

		for tries := 0; p.row(msgs[0].UUID).Status != rowParked; tries++ {
			require.Less(t, tries, 50)
			p.store("orders", b.letters("", 1)...)
			_, err = relay.RelayBatch(t.Context())
		}
		assert.ErrorIs(t, err, errRefused)
		assert.Equal(t, 2, p.row(msgs[0].UUID).Attempts)
		assert.Equal(t, rowHeld, p.row(msgs[1].UUID).Status)
		_, err = relay.RelayBatch(t.Context())
		assert.NoError(t, err, "what is parked is not news")
	})},
	{Name: "a batch behind an earlier message", Why: "a relay that knows nothing yet sends none that is due before an earlier one of its key", Run: strictly(func(t *testing.T, p *post, b *strict) {
		ids := p.store("orders", b.letters("k", 5)...)
		p.db.Do(t, `UPDATE millrace_outbox SET status = 3, due_at = created_at,
			blocked_key = CASE WHEN order_key IS NULL THEN NULL ELSE key_hash END WHERE status IN (0, 1, 2)`) // docs/outbox.md
		batch := func() int {
			n, err := p.newRelay(b).RelayBatch(t.Context())
			require.NoError(t, err)
			return n
		}
		retry := func(id string) { require.NoError(t, p.out.Retry(t.Context(), p.row(id).ID, ann)) }
		retry(ids[2])
		p.db.Do(t, `UPDATE millrace_outbox SET attempts = 3 WHERE uuid = ?`, ids[2])
		require.Zero(t, batch(), "the first is parked")
		assert.Zero(t, batch())
		assert.Equal(t, rowHeld, p.row(ids[2]).Status)
		assert.Equal(t, 3, p.row(ids[2]).Attempts)

		retry(ids[0])
		p.db.Do(t, `UPDATE millrace_outbox SET due_at = due_at + ? WHERE uuid = ?`, time.Hour.Microseconds(), ids[0])
		retry(ids[4])
		assert.Zero(t, batch(), "the first is to be tried later")
		p.db.Do(t, `UPDATE millrace_outbox SET due_at = 1 WHERE uuid = ?`, ids[0])
		retry(ids[3])
		retry(ids[1])
		assert.Equal(t, 5, batch())
		b.once(ids)

		msgs := b.letters("k", 2)
		ids = p.store("orders", msgs...)
		p.db.Do(t, `UPDATE millrace_outbox SET status = 3`) // as Continue parks them
		b.excuse(msgs[0])
		retry(ids[1])
		assert.Equal(t, 1, batch())
	})},
	{Name: "a batch in an outage", Why: "it ends with an error, and what was confirmed before is written off", Run: strictly(func(t *testing.T, p *post, b *strict) {
		relay := p.newRelay(b, func(c *outbox.RelayConfig) { c.Batch, c.Lanes = 5, 2 })
		all := p.store("orders", b.letters("", 40)...)
		var left atomic.Int32
		left.Store(4)
		b.with(func() {
			b.before = func() {
				if left.Add(-1) == 0 { // some are confirmed by then
					b.refusing(refuseAll)
				}
			}
		})
		n, err := relay.RelayBatch(t.Context())
		require.ErrorIs(t, err, errRefused)
		sent := b.counts()
		assert.Len(t, sent, n)
		assert.Less(t, n, 40)
		for _, r := range p.table() {
			assert.Zero(t, sent[r.UUID], "what was confirmed is written off")
			assert.Zero(t, r.Attempts)
		}
		n, err = relay.RelayBatch(t.Context())
		require.ErrorIs(t, err, errRefused)
		assert.Zero(t, n)

		b.with(func() { b.before, b.refuse = nil, nil })
		rig.Eventually(p, "all is sent", func() bool {
			_, err := relay.RelayBatch(t.Context())
			assert.NoError(t, err)
			return p.rows() == 0
		})
		b.once(all)
	})},
	{Name: "a batch whose table is out of reach", Why: "it ends with the error, and the next one sends what is there", Run: strictly(func(t *testing.T, p *post, b *strict) {
		relay := p.newRelay(b, func(c *outbox.RelayConfig) { c.Batch, c.Drain = 5, 100*time.Millisecond })
		batch := func() (n int, err error) {
			ended := make(chan error, 1)
			go func() {
				var err error
				n, err = relay.RelayBatch(t.Context())
				ended <- err
			}()
			err = rig.Within(t, ended, "RelayBatch does not return")
			return n, err
		}
		rename := func(from, to string) {
			_, err := p.db.ExecContext(t.Context(), `ALTER TABLE `+from+` RENAME TO `+to)
			assert.NoError(t, err)
		}
		all := p.store("orders", append(b.letters("k", 3), b.letters("", 30)...)...)
		rename("millrace_outbox", "away")
		_, err := batch()
		require.ErrorIs(t, err, outbox.ErrNotMigrated)
		assert.NotContains(t, err.Error(), "within Drain")
		assert.Empty(t, b.counts())
		rename("away", "millrace_outbox")

		var once sync.Once
		b.with(func() { b.before = func() { once.Do(func() { rename("millrace_outbox", "away") }) } })
		_, err = batch()
		require.ErrorIs(t, err, outbox.ErrNotMigrated)
		require.ErrorContains(t, err, "within Drain")
		rename("away", "millrace_outbox")
		assert.Equal(t, len(all), p.rows(), "what was sent is not recorded")

		n, err := batch()
		require.NoError(t, err)
		assert.Equal(t, len(all), n)
		assert.Zero(t, p.rows())
		sent := b.counts()
		for _, id := range all {
			assert.Positive(t, sent[id])
		}
	})},
	{Name: "a batch beside a relay that runs", Why: "each message is sent by one of them", Run: strictly(func(t *testing.T, p *post, b *strict) {
		p.relayTo(b)
		b.awaitAll(p.store("orders", b.letters("k", 1)...))
		other := p.newRelay(b)
		var all []string
		for i := range 5 {
			all = append(all, p.store("orders", append(b.letters("k", 3), b.letters(fmt.Sprint(i), 3)...)...)...)
			_, err := other.RelayBatch(t.Context())
			require.NoError(t, err)
		}
		p.sentOnce(b, all)
	})},
}
