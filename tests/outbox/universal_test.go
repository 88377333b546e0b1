package outbox_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub/watermillsql"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/suite"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestUniversalSuite runs Watermill's own suite for pub/subs on an outbox publisher and
// what a relay brings to a target. Each topic is one order key. The target is durable and
// keeps order: tables on MariaDB. On PostgreSQL watermill-sql reads nothing that began after
// a message that is still held, of any topic, and TestTopic holds one while it awaits another.
func TestUniversalSuite(t *testing.T) {
	testdb.Turn(t, 3, seconds)
	run := func(t *testing.T, db, target *testdb.DB) {
		table, err := watermillsql.NewPublisher(target.DB, watermillsql.Config{})
		require.NoError(t, err)
		relay, err := outbox.NewRelay(db.DB, table, outbox.RelayConfig{}) // as it comes; it outlives every publisher
		require.NoError(t, err)
		start(t, relay)
		grouped := func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
			s, err := watermillsql.NewSubscriber(target.DB, watermillsql.SubscriberConfig{
				ConsumerGroup: group,
				PollInterval:  10 * time.Millisecond, ResendInterval: 5 * time.Millisecond, RetryInterval: 5 * time.Millisecond,
			})
			require.NoError(t, err)
			return newOrdered(t, db), suite.Ends(t, s)
		}
		tests.TestPubSub(t, tests.Features{
			ConsumerGroups: true, GuaranteedOrder: true, Persistent: true, ForceShort: true,
		}, func(t *testing.T) (message.Publisher, message.Subscriber) { return grouped(t, "test") }, grouped)
	}
	for _, dialect := range testdb.Sample(t, 1, testdb.Dialects()) {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			db := testdb.On(t, dialect, testdb.Pool(25))
			target := db
			if dialect != "mysql" {
				target = testdb.On(t, "mysql", testdb.Pool(25))
			}
			run(t, db, target)
		})
	}
}

// newOrdered returns a publisher that stores what carries no transaction by itself.
func newOrdered(t *testing.T, db *testdb.DB) *outbox.Publisher {
	t.Helper()
	return rig.NewOutbox(t, db.DB, outbox.Config{OrderKey: outbox.ByTopic(), Standalone: true})
}
