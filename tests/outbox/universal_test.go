package outbox_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub/watermillsql"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestUniversalSuite runs Watermill's own suite for pub/subs on an outbox publisher and
// what a relay brings to a target. Each topic is one order key. The target is durable and
// keeps order: tables on MariaDB. On PostgreSQL watermill-sql reads nothing that began after
// a message that is still held, of any topic, and TestTopic holds one while it awaits another.
func TestUniversalSuite(t *testing.T) {
	suite := func(t *testing.T, db, target *testdb.DB) {
		relayTo(t, db, newTable(t, target))
		grouped := func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
			s, err := watermillsql.NewSubscriber(target.DB, watermillsql.SubscriberConfig{
				ConsumerGroup: group,
				PollInterval:  time.Millisecond, ResendInterval: 5 * time.Millisecond, RetryInterval: 5 * time.Millisecond,
			})
			require.NoError(t, err)
			return newOrdered(t, db), s
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
			suite(t, db, target)
		})
	}
}

// TestUniversalSuiteInMemory needs no server. A persistent GoChannel gives everything to
// every subscriber, also to those that come later, and in any order.
func TestUniversalSuiteInMemory(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "sqlite")
	channel := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, nil)
	t.Cleanup(func() { assert.NoError(t, channel.Close()) })
	relayTo(t, db, channel)
	tests.TestPubSub(t, tests.Features{
		NewSubscriberReceivesOldMessages: true, Persistent: true, ForceShort: true,
	}, func(t *testing.T) (message.Publisher, message.Subscriber) {
		ctx, cancel := context.WithCancel(context.Background())
		return newOrdered(t, db), &listener{channel: channel, ended: ctx.Done(), end: cancel}
	}, nil)
}

// listener is a subscriber to a GoChannel that goes on when the listener is closed.
type listener struct {
	channel *gochannel.GoChannel
	ended   <-chan struct{}
	end     context.CancelFunc
	open    sync.WaitGroup
}

func (l *listener) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	ctx, cancel := context.WithCancel(ctx)
	messages, err := l.channel.Subscribe(ctx, topic)
	if err != nil {
		cancel()
		return nil, err
	}
	heard := make(chan *message.Message)
	l.open.Go(func() {
		defer close(heard)
		defer cancel()
		for {
			select {
			case <-l.ended:
				return
			case msg, open := <-messages:
				if !open {
					return
				}
				select {
				case heard <- msg:
				case <-l.ended:
					return
				}
			}
		}
	})
	return heard, nil
}

// Close returns when every subscription has ended.
func (l *listener) Close() error {
	l.end()
	l.open.Wait()
	return nil
}

// newOrdered returns a publisher that stores what carries no transaction by itself.
func newOrdered(t *testing.T, db *testdb.DB) *outbox.Publisher {
	t.Helper()
	return rig.NewOutbox(t, db.DB, outbox.Config{OrderKey: outbox.ByTopic(), Standalone: true})
}

func newTable(t *testing.T, db *testdb.DB) *watermillsql.Publisher {
	t.Helper()
	p, err := watermillsql.NewPublisher(db.DB, watermillsql.Config{})
	require.NoError(t, err)
	return p
}

// relayTo starts a relay as it comes, which outlives every publisher.
func relayTo(t *testing.T, db *testdb.DB, target message.Publisher) {
	t.Helper()
	require.NoError(t, newOrdered(t, db).Migrate(t.Context()))
	relay, err := outbox.NewRelay(db.DB, target, outbox.RelayConfig{})
	require.NoError(t, err)
	start(t, relay)
}
