package interop_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/testdb"
)

// What a process had in hand when it ended is claimed by the next one once it is idle for
// MaxIdleTime, by default after a minute. Later messages come before it.
func TestRedisStream(t *testing.T) {
	options, err := redis.ParseURL(service(t, "MILLRACE_TEST_REDIS"))
	require.NoError(t, err)
	topic, client := freshTopic(), redis.NewClient(options)
	publisher, err := redisstream.NewPublisher(redisstream.PublisherConfig{Client: client}, watermill.NopLogger{})
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, client.Del(context.WithoutCancel(t.Context()), topic).Err())
		assert.NoError(t, publisher.Close()) // and the client
	})
	deliver(t, testdb.On(t, "sqlite"), broker{
		topic: topic, publisher: publisher, unordered: true,
		subscriber: func() message.Subscriber {
			s, err := redisstream.NewSubscriber(redisstream.SubscriberConfig{
				Client: redis.NewClient(options), ConsumerGroup: "billing",
				MaxIdleTime: time.Second, ClaimInterval: 200 * time.Millisecond, DisableIndefiniteInitialBlock: true,
			}, watermill.NopLogger{})
			require.NoError(t, err)
			return s
		},
	})
}
