package durable_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/pubsub/watermillsql"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/suite"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestUniversalSuite runs Watermill's own suite for pub/subs on a durable subscriber, in
// both modes, over topics that are tables of watermill-sql on MariaDB.
func TestUniversalSuite(t *testing.T) {
	testdb.Turn(t, 3, seconds)
	play := func(t *testing.T, db, upstream *testdb.DB, mode pubsub.Mode) {
		store := rig.NewStore(t, db.DB, inbox.Config{})
		require.NoError(t, store.Migrate(t.Context()))
		grouped := func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
			p, err := watermillsql.NewPublisher(upstream.DB, watermillsql.Config{})
			require.NoError(t, err)
			s, err := watermillsql.NewSubscriber(upstream.DB, watermillsql.SubscriberConfig{
				ConsumerGroup: group,
				PollInterval:  10 * time.Millisecond, ResendInterval: 5 * time.Millisecond, RetryInterval: 5 * time.Millisecond,
			})
			require.NoError(t, err)
			durable := pubsub.Durable{
				Store: store, Mode: mode, ConsumerOf: func(topic string) string { return group + " of " + topic },
				Poll: 20 * time.Millisecond, Lease: 20 * time.Second, MinBackoff: time.Millisecond, MaxBackoff: 5 * time.Millisecond,
			}
			if mode == pubsub.StoreFirst {
				durable.OrderKey = func(*message.Message) (string, error) { return "one", nil }
			}
			d, err := durable.Decorate(s)
			require.NoError(t, err)
			return p, suite.Ends(t, d)
		}
		tests.TestPubSub(t, tests.Features{
			ConsumerGroups: true, GuaranteedOrder: true, Persistent: true, ForceShort: true,
		}, func(t *testing.T) (message.Publisher, message.Subscriber) { return grouped(t, "test") }, grouped)
	}
	pool := testdb.Pool(25)
	type run struct {
		name, dialect string
		mode          pubsub.Mode
	}
	all := []run{
		{"on failure", "mysql", pubsub.StoreOnFailure},
		{"on failure", "postgres", pubsub.StoreOnFailure},
		{"first", "postgres", pubsub.StoreFirst},
		{"first", "mysql", pubsub.StoreFirst},
	}
	if testdb.Long() { // with one writer, minutes
		all = append(all, run{"on failure", "sqlite", pubsub.StoreOnFailure}, run{"first", "sqlite", pubsub.StoreFirst})
	}
	for _, run := range testdb.Sample(t, 1, all) {
		t.Run("stored "+run.name+" on "+run.dialect, func(t *testing.T) {
			play(t, testdb.On(t, run.dialect, pool), testdb.On(t, "mysql", pool), run.mode)
		})
	}
}
