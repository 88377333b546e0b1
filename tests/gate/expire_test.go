package gate_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// One look, every ten seconds, parks thousands that were held too long.
func TestManyAreHeldTooLong(t *testing.T) {
	t.Parallel()
	if !testdb.Long() {
		t.Skip("it waits for a look: MILLRACE_TEST_LONG=1")
	}
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		const many = 3000
		b.queued(b.store)
		must(t, b.gated(b.store, millrace.VersionGate{HeldFor: time.Millisecond}, handler), change("a", 2))
		text := map[string]string{
			"postgres": "convert_to((%s)::text, 'UTF8')", "mysql": "CAST(%s AS CHAR)", "sqlite": "CAST(%s AS BLOB)",
		}[b.db.Dialect]
		b.db.Do(t, fmt.Sprintf(`
			INSERT INTO millrace_messages (consumer, message_id, status, topic, uuid, metadata, payload, payload_hash,
				aggregate, version, received_at, due_at)
			WITH RECURSIVE n (j) AS (SELECT 0 UNION ALL SELECT j + 1 FROM n WHERE j < 99)
			SELECT m.consumer, %s, m.status, m.topic, m.uuid, m.metadata, m.payload, m.payload_hash, %s, 2, m.received_at, m.due_at
			FROM millrace_messages m
			CROSS JOIN (SELECT a.j * 100 + b.j AS i FROM n a CROSS JOIN n b WHERE a.j * 100 + b.j < %d) numbers`,
			fmt.Sprintf(text, "i"), fmt.Sprintf(text, "i % 50"), many-1))
		go func() { assert.NoError(t, b.store.Run(t.Context())) }()
		rig.Eventually(b, "a look begins", func() bool { return b.open(inbox.Parked) > 0 })
		looked := time.Now()
		rig.Eventually(b, "all are parked", func() bool { return b.open(inbox.Parked) == many })
		assert.Less(t, time.Since(looked), 9*time.Second, "in one look")
		rig.Eventually(b, "all are told", func() bool { return b.events.Count("parked") == many })
		assert.Contains(t, b.events.Last("parked").Err.Error(), "held too long: its predecessor, version 1")
	}))
}
