package outbox_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestTheFirstKeyAfterMessagesWithoutOneIsInOrder(t *testing.T) {
	t.Parallel()
	p := newPost(t, testdb.On(t, "postgres"))
	p.relay()
	p.broker.awaitAll(t, p.send("orders", "", 1))

	tx, err := p.db.BeginTxx(t.Context(), nil) // open for longer than messages without a key are waited for
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }() // committed below
	first := letters("k", 1)
	require.NoError(t, p.publishIn(outbox.WithTx(t.Context(), tx), "orders", first))
	for began := time.Now(); time.Since(began) < 5*time.Second; {
		p.broker.awaitAll(t, p.send("orders", "", 1))
	}
	require.NoError(t, tx.Commit())
	then := p.send("orders", "k", 1)
	p.broker.awaitAll(t, then)
	assert.Equal(t, append(uuids(first), then...), p.broker.firsts("k"))
}

func TestALookReadsNoMoreOfABacklogThanItTakes(t *testing.T) {
	p := newPost(t, testdb.On(t, "postgres"))
	_, err := p.db.ExecContext(t.Context(), `INSERT INTO millrace_outbox (key_hash, created_at, topic, uuid)
		SELECT i, 0, 'orders', i::TEXT FROM generate_series(1, 50000) i`) // of which there are no statistics
	require.NoError(t, err)
	text := p.planOfALook()
	assert.Contains(t, text, "Index Scan using ix_millrace_outbox_pending")
	assert.NotContains(t, text, "Sort")
}

func TestALookPassesNoSentMessages(t *testing.T) {
	p := newPost(t, testdb.On(t, "postgres"))
	for _, statement := range []string{
		`INSERT INTO millrace_outbox (key_hash, created_at, topic, uuid)
			SELECT i, 0, 'orders', i::TEXT FROM generate_series(1, 50000) i`,
		`ANALYZE millrace_outbox`, // in a backlog
		`UPDATE millrace_outbox SET status = 4, due_at = 9000000000000000 + id`,
	} {
		p.db.Do(t, statement)
	}
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
