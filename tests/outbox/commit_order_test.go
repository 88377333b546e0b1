package outbox_test

import (
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// Transactions that overlap commit in the reverse order of their ids. The relay sends what is
// committed without waiting for what is not, and skips nothing: what is committed later
// is sent within a second, however long its transaction was open and however many messages
// with greater ids were sent and written off meanwhile. Nor does an open transaction keep the
// relay from writing off. On SQLite transactions do not overlap.
func TestReverseCommitOrder(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{"postgres", "mysql"} {
		for name, key := range map[string]string{"with a key": "k", "without": ""} {
			t.Run(dialect+", "+name, func(t *testing.T) {
				t.Parallel()
				p := newPost(t, testdb.On(t, dialect))
				p.relay(func(c *outbox.RelayConfig) { c.Poll = time.Minute }) // so that none is found by looking
				p.broker.awaitAll(t, p.send("orders", key, 1))
				for _, open := range []time.Duration{0, 4 * time.Second} { // below what is looked at again, and above
					first, second := p.begin(), p.begin()
					one, two := first.send(key+key, 2), second.send(key, 2)
					pace := time.Tick(50 * time.Millisecond)
					for began := time.Now(); time.Since(began) < open; <-pace {
						p.broker.awaitAll(t, p.send("orders", key, 5))
					}
					second.commit()
					p.broker.awaitAll(t, two)
					p.broker.awaitAll(t, p.send("orders", key, 1))
					sent := p.broker.deliveries()
					assert.Zero(t, sent[one[0]]+sent[one[1]], "sent before its commit")
					committed := time.Now()
					first.commit()
					p.broker.awaitAll(t, one)
					late := time.Since(committed)
					t.Logf("open for %v: sent %v after the commit", open, late.Round(time.Millisecond))
					assert.Less(t, late, 30*time.Second, "by the look once in a minute")
				}
				rig.Eventually(p, "the outbox is empty", func() bool { return p.rows() == 0 })
			})
		}
	}
}

// open is a transaction that stores messages.
type open struct {
	*post
	tx *sqlx.Tx
}

func (p *post) begin() open {
	p.Helper()
	tx, err := p.db.BeginTxx(p.Context(), nil)
	require.NoError(p, err)
	p.Cleanup(func() { _ = tx.Rollback() }) // it was committed, unless the test failed
	return open{p, tx}
}

func (o open) send(key string, n int) []string {
	o.Helper()
	msgs := letters(key, n)
	require.NoError(o, o.publishIn(outbox.WithTx(o.Context(), o.tx), "orders", msgs))
	return uuids(msgs)
}

func (o open) commit() {
	o.Helper()
	require.NoError(o, o.tx.Commit())
}
