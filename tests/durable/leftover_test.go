package durable_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// A process starts with many messages left over in the table, and its source says nothing,
// ever. All of them are handled once, and the process does not grow with their number.
func TestManyLeftOver(t *testing.T) {
	t.Parallel()
	const growth = 16 << 20 // of the heap: what it remembers has its bounds
	first, doubled, weighings := 250, 1, 10
	if testdb.Long() {
		first, doubled, weighings = 3125, 6, 200
	}
	messages := first << doubled
	testdb.Some(t, 1, func(t *testing.T, db *testdb.DB) {
		b := newBed(t, tuned(t, db))
		b.createWorks()
		b.leave(first, func(n int) *message.Message {
			return message.NewMessage(fmt.Sprint(n, " "), make([]byte, 1000))
		})
		for n := range doubled {
			b.double(string(rune('a' + n)))
		}
		require.Equal(t, messages, b.rows())
		if db.Dialect == "postgres" { // as autovacuum does within a minute, where it is on
			db.Do(t, `ANALYZE`)
		}
		s := b.served()
		s.Weigh, s.Lease = messages/weighings, time.Minute
		began := time.Now()
		p := s.launch(t)
		for n := range weighings { // each within the minute that Await waits
			p.Await(weighed, n+1)
		}
		rig.Eventually(b, "all are handled", func() bool { return b.rows() == 0 })
		took := time.Since(began)
		counts := p.Close()
		assert.GreaterOrEqual(t, counts[ran], messages)
		assert.LessOrEqual(t, counts[ran], messages+counts[undone], "runs, of which deadlocks undid %d\n%s", counts[undone], p.Said())
		assert.Equal(t, messages, b.count(`SELECT COUNT(*) FROM works`))
		assert.Equal(t, messages, b.count(`SELECT COUNT(DISTINCT uuid) FROM works`))
		least, most := 1<<40, 0
		for _, e := range p.Await(weighed, weighings) {
			least, most = min(least, e.Counts["heap"]), max(most, e.Counts["heap"])
		}
		assert.Less(t, most-least, growth, "the heap grew from %d to %d bytes", least, most)
		t.Logf("%d messages: handled in %v (%.0f/s), heap between %d and %d KB", messages,
			took.Round(time.Millisecond), float64(messages)/took.Seconds(), least>>10, most>>10)
	})
}

// double stores for each message another one, whose key and UUID have a letter more.
func (b *bed) double(letter string) {
	b.Helper()
	and := map[string]string{
		"postgres": `message_id || 'a'::bytea, uuid || 'a'::bytea`,
		"mysql":    `CONCAT(message_id, 'a'), CONCAT(uuid, 'a')`,
		"sqlite":   `CAST(message_id || 'a' AS BLOB), CAST(uuid || 'a' AS BLOB)`,
	}[b.db.Dialect]
	and = strings.ReplaceAll(and, "'a'", "'"+letter+"'")
	b.db.Do(b, `
		INSERT INTO millrace_messages (message_id, uuid, consumer, status, topic, event_type, event_version,
			metadata, payload, payload_hash, reason, received_at, due_at)
		SELECT `+and+`, consumer, status, topic, event_type, event_version, metadata, payload, payload_hash, reason,
			received_at, due_at
		FROM millrace_messages`)
}
