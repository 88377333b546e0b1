package bench_test

import (
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/pubsub"
)

// BenchmarkIndexes is what the parts of the inbox's indexes that only operators need cost the
// durable queue on PostgreSQL: stored messages, taken together, with a handler that does nothing
// and fails for none, with the index as it is and without what it includes, and without the
// index of groups of failures.
func BenchmarkIndexes(b *testing.B) {
	db := database(b)
	n := pick(3_000, 50)
	const status = `CREATE INDEX ix_millrace_messages_status ON millrace_messages (consumer, status, id)`
	const group = `CREATE INDEX ix_millrace_messages_group ON millrace_messages (consumer, error_group, id) WHERE error_group IS NOT NULL`
	ways := []struct {
		name    string
		indexes []string
	}{
		{"as it is", []string{status + ` INCLUDE (due_at, lease_token)`, group}},
		{"without INCLUDE", []string{status, group}},
		{"without groups", []string{status + ` INCLUDE (due_at, lease_token)`}},
	}
	rates := series{}
	for range pick(7, 1) {
		for _, way := range ways {
			run(b, db, `DROP INDEX IF EXISTS ix_millrace_messages_status`, `DROP INDEX IF EXISTS ix_millrace_messages_group`)
			run(b, db, way.indexes...)
			store := newStore(b, db)
			storeMessages(b, db, store, n)
			rates.add(way.name, emptied(b, db, n, taken(b, store), topic, noop))
		}
	}
	for _, way := range ways[1:] {
		ratios := rates.over("as it is", way.name)
		tell(fmt.Sprintf("indexes: as it is %.0f/s, %s %.0f/s: ratio=%.2f no goal (turns %s)",
			median(rates["as it is"]), way.name, median(rates[way.name]), median(ratios), list(ratios)))
	}
	b.ReportMetric(0, "ns/op")
}

// taken is the subscriber of what is stored.
func taken(b *testing.B, store *inbox.Store) message.Subscriber {
	b.Helper()
	source, err := pubsub.Durable{Store: store, Consumer: "billing", Mode: pubsub.StoreFirst, Concurrency: inFlight}.Decorate(nothing{})
	require.NoError(b, err)
	return source
}
