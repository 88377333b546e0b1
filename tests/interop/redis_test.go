package interop_test

import (
	"context"
	"encoding/json"
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
	r := newRedisStream(t)
	deliver(t, testdb.On(t, "sqlite"), broker{
		topic: r.topic, publisher: r.publisher, unordered: true, subscriber: r.subscriber,
	})
}

// TestRedisStreamForeignEntries: an entry that is no message of Watermill holds nothing up.
func TestRedisStreamForeignEntries(t *testing.T) {
	t.Parallel()
	r := newRedisStream(t)
	for _, entry := range []map[string]any{
		{"foo": "bar"},
		{redisstream.UUIDHeaderKey: "1", "metadata": "none"},
		{redisstream.UUIDHeaderKey: "1", "metadata": "\xc0"}, // nil
	} {
		require.NoError(t, r.client.XAdd(t.Context(), &redis.XAddArgs{Stream: r.topic, Values: entry}).Err())
	}
	require.NoError(t, r.publisher.Publish(r.topic, message.NewMessage("good", nil)))
	messages, err := r.subscriber().Subscribe(t.Context(), r.topic)
	require.NoError(t, err)
	var uuids, payloads []string
	for len(uuids) < 4 {
		msg := next(t, messages)
		msg.Metadata.Set("a", "b")
		uuids, payloads = append(uuids, msg.UUID), append(payloads, string(msg.Payload))
		msg.Ack()
	}
	assert.Equal(t, []string{"", "", "", "good"}, uuids, "the inbox keeps those without")
	assert.JSONEq(t, `{"foo": "bar"}`, payloads[0])
}

// TestRedisStreamThatIsGone: the subscription ends, and the next one makes the stream and the group anew.
func TestRedisStreamThatIsGone(t *testing.T) {
	t.Parallel()
	r := newRedisStream(t)
	for range 2 {
		s := r.subscriber()
		messages, err := s.Subscribe(t.Context(), r.topic)
		require.NoError(t, err)
		require.NoError(t, r.publisher.Publish(r.topic, message.NewMessage("1", nil)))
		next(t, messages).Ack()
		require.NoError(t, r.client.Del(t.Context(), r.topic).Err())
		require.NoError(t, happens(end(messages), "the subscription ends"))
		require.NoError(t, s.Close())
	}
}

// redisStream is a stream with the settings of docs/redis.md.
type redisStream struct {
	*testing.T
	topic     string
	options   *redis.Options
	client    *redis.Client
	publisher message.Publisher
}

func newRedisStream(t *testing.T) *redisStream {
	t.Helper()
	options, err := redis.ParseURL(service(t, "MILLRACE_TEST_REDIS"))
	require.NoError(t, err)
	r := &redisStream{T: t, topic: freshTopic(), options: options, client: redis.NewClient(options)}
	r.publisher, err = redisstream.NewPublisher(redisstream.PublisherConfig{Client: r.client}, watermill.NopLogger{})
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, r.client.Del(context.WithoutCancel(t.Context()), r.topic).Err())
		assert.NoError(t, r.publisher.Close()) // and the client
	})
	return r
}

// subscriber returns that of a process.
func (r *redisStream) subscriber() message.Subscriber {
	r.Helper()
	options := r.options
	config := redisstream.SubscriberConfig{
		Client: redis.NewClient(options), ConsumerGroup: "billing", DisableIndefiniteInitialBlock: true,
		Unmarshaller:           anyEntry{},
		ShouldStopOnReadErrors: func(err error) bool { return redis.HasErrorPrefix(err, "NOGROUP") },
		ConsumerTimeout:        365 * 24 * time.Hour,
	}
	config.MaxIdleTime, config.ClaimInterval = time.Second, 200*time.Millisecond
	s, err := redisstream.NewSubscriber(config, watermill.NopLogger{})
	require.NoError(r, err)
	r.Cleanup(func() { assert.NoError(r, s.Close()) })
	return s
}

// anyEntry is that of docs/redis.md.
type anyEntry struct {
	redisstream.DefaultMarshallerUnmarshaller
}

func (u anyEntry) Unmarshal(entry map[string]any) (*message.Message, error) {
	if msg, err := u.DefaultMarshallerUnmarshaller.Unmarshal(entry); err == nil && msg.Metadata != nil {
		return msg, nil
	}
	payload, err := json.Marshal(entry)
	return message.NewMessage("", payload), err
}
