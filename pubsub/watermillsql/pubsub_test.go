package watermillsql_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/pubsub/watermillsql"
	"github.com/millrace-go/millrace/tests/servers"
	"github.com/millrace-go/millrace/tests/suite"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestPubSub is Watermill's universal suite. As in watermill-sql's own run of it with pgx, a
// message may come twice when a subscriber is closed at that moment. PostgreSQL is one of
// its own: a transaction of any other test would hold back messages, and the suite's
// patience ends after 15 seconds.
func TestPubSub(t *testing.T) {
	run := func(t *testing.T, db *testdb.DB) {
		grouped := func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
			p, err := watermillsql.NewPublisher(db.DB, watermillsql.Config{})
			require.NoError(t, err)
			s, err := watermillsql.NewSubscriber(db.DB, watermillsql.SubscriberConfig{
				ConsumerGroup: group,
				PollInterval:  10 * time.Millisecond, ResendInterval: 5 * time.Millisecond, RetryInterval: 5 * time.Millisecond,
			})
			require.NoError(t, err)
			return p, suite.Ends(t, s)
		}
		tests.TestPubSub(t, tests.Features{
			ConsumerGroups: true, GuaranteedOrder: true, Persistent: true, ForceShort: true,
		}, func(t *testing.T) (message.Publisher, message.Subscriber) { return grouped(t, "test") }, grouped)
	}
	t.Run("postgres", func(t *testing.T) {
		run(t, testdb.At(t, "postgres", servers.Postgres(t, "fsync=off", "synchronous_commit=off").DSN(), testdb.Pool(25)))
	})
	t.Run("mysql", func(t *testing.T) { run(t, testdb.On(t, "mysql", testdb.Pool(25))) })
}
