package bench_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/tests/testdb"
)

// BenchmarkLook is how long Queue.Take takes where many messages stand in line behind few
// order keys: while the first of each is to be had, and while others have them all.
func BenchmarkLook(b *testing.B) {
	const keys = 40
	n := pick(200_000, 2_000)
	testdb.Each(b, func(b *testing.B, db *testdb.DB) {
		store := newStore(b, db)
		require.NoError(b, store.Migrate(b.Context()))
		q, err := store.Queue(inbox.QueueConfig{
			Consumer: "billing", Lease: time.Hour,
			OrderKey: func(*message.Message) (string, error) { return "key", nil },
		})
		require.NoError(b, err)
		require.NoError(b, q.Put(b.Context(), topic, message.NewMessage("first", payload)))
		lineUp(b, db, n, keys)
		var free, taken []time.Duration
		for range pick(7, 1) {
			leased, took := look(b, q)
			require.Len(b, leased, keys)
			free = append(free, took)
			none, took := look(b, q)
			require.Empty(b, none)
			taken = append(taken, took)
			require.NoError(b, q.PutBack(b.Context(), leased...))
		}
		tell(fmt.Sprintf("look/%s (%d messages of %d keys: first of each %v, while others have them %v, median of %d)",
			db.Dialect, n, keys, middle(free), middle(taken), len(free)))
		b.ReportMetric(0, "ns/op")
	})
}

func look(b *testing.B, q *inbox.Queue) (leased []*inbox.Leased, took time.Duration) {
	b.Helper()
	began := time.Now()
	leased, _, err := q.Take(b.Context(), 100, time.Second)
	require.NoError(b, err)
	return leased, time.Since(began)
}

func middle(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2].Round(100 * time.Microsecond)
}

// lineUp makes of the only message n, of so many order keys.
func lineUp(b *testing.B, db *testdb.DB, n, keys int) {
	b.Helper()
	text := map[string]string{
		"postgres": "convert_to((%s)::text, 'UTF8')", "mysql": "CAST(%s AS CHAR)", "sqlite": "CAST(%s AS BLOB)",
	}[db.Dialect]
	key, id := fmt.Sprintf(text, fmt.Sprintf("1000 + i %% %d", keys)), fmt.Sprintf(text, "i")
	run(b, db, fmt.Sprintf(`
		INSERT INTO millrace_messages (consumer, message_id, status, topic, order_key, uuid, metadata, payload, payload_hash,
			reason, received_at, due_at)
		WITH RECURSIVE n (j) AS (SELECT 0 UNION ALL SELECT j + 1 FROM n WHERE j < 499)
		SELECT m.consumer, %s, m.status, m.topic, %s, %s, m.metadata, m.payload, m.payload_hash, m.reason, m.received_at, m.due_at
		FROM millrace_messages m
		CROSS JOIN (SELECT a.j * 500 + b.j AS i FROM n a CROSS JOIN n b WHERE a.j * 500 + b.j < %d ORDER BY 1) numbers`, id, key, id, n),
		`DELETE FROM millrace_messages WHERE uuid = `+fmt.Sprintf(text, "'first'"))
}
