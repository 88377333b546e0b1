package outbox_test

import (
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/dialect"
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
	testdb.Turn(t, 3, seconds)
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
					assert.Less(t, time.Since(committed), 30*time.Second, "by the look once in a minute")
				}
				rig.Eventually(p, "the outbox is empty", func() bool { return p.rows() == 0 })
			})
		}
	}
}

// open is a transaction that stores messages. It is rolled back unless the test commits it.
type open struct {
	*post
	tx *sqlx.Tx
}

func (p *post) begin() open {
	p.Helper()
	tx, err := p.db.BeginTxx(p.Context(), nil)
	require.NoError(p, err)
	p.Cleanup(func() { _ = tx.Rollback() }) // it may have ended
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

func TestTheFirstKeyAfterMessagesWithoutOneIsInOrder(t *testing.T) {
	testdb.Turn(t, 3, seconds)
	t.Parallel()
	p := newPost(t, testdb.On(t, "postgres"))
	p.relay()
	p.broker.awaitAll(t, p.send("orders", "", 1))

	late := p.begin() // open for longer than messages without a key are waited for
	first := late.send("k", 1)
	for began := time.Now(); time.Since(began) < 5*time.Second; {
		p.broker.awaitAll(t, p.send("orders", "", 1))
		<-time.After(20 * time.Millisecond)
	}
	late.commit()
	then := p.send("orders", "k", 1)
	p.broker.awaitAll(t, then)
	assert.Equal(t, append(first, then...), p.broker.firsts("k"))
}

func TestALookReadsNoMoreOfABacklogThanItTakes(t *testing.T) {
	p := newPost(t, testdb.On(t, "postgres"))
	p.db.Do(t, `INSERT INTO millrace_outbox (key_hash, created_at, topic, uuid)
		SELECT i, 0, 'orders', i::TEXT FROM generate_series(1, 50000) i`) // of which there are no statistics
	text := p.planOfALook()
	assert.Contains(t, text, "Index Scan using ix_millrace_outbox_pending")
	assert.NotContains(t, text, "Sort")
}

func TestALookPassesNoSentMessages(t *testing.T) {
	p := newPost(t, testdb.On(t, "postgres"))
	p.db.Do(t, `INSERT INTO millrace_outbox (key_hash, created_at, topic, uuid)
		SELECT i, 0, 'orders', i::TEXT FROM generate_series(1, 50000) i`)
	p.db.Do(t, `ANALYZE millrace_outbox`) // in a backlog
	p.db.Do(t, `UPDATE millrace_outbox SET status = 4, due_at = 9000000000000000 + id`)
	text := p.planOfALook()
	assert.Contains(t, text, "ix_millrace_outbox_pending", "this one has nothing to pass")
	assert.NotContains(t, text, "Rows Removed by Filter")
}

func (p *post) planOfALook() string {
	p.Helper()
	d := dialect.For(dialect.PostgresName, dialect.Names{Prefix: dialect.DefaultPrefix})
	var plan []string
	err := p.db.SelectContext(p.Context(), &plan, `EXPLAIN (ANALYZE) `+d.Outbox.SelectPending, `[]`, 0, 65535, 16, 500)
	require.NoError(p, err)
	return strings.Join(plan, "\n")
}
