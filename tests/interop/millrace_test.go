package interop_test

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/pubsub/rabbitmq"
	"github.com/millrace-go/millrace/pubsub/watermillsql"
	"github.com/millrace-go/millrace/tests/testdb"
)

// A subscriber that is closed waits for the handler, unless it is told to give up soon.
func TestMillraceRabbitMQ(t *testing.T) {
	url := service(t, "MILLRACE_TEST_RABBITMQ")
	for name, queues := range map[string]rabbitmq.Queues{"classic": {}, "quorum": {Quorum: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topic, config := freshTopic(), rabbitmq.NewQueueConfig(url, queues)
			config.Marshaler = plain{}
			require.NoError(t, rabbitmq.Declare(config, topic))
			publisher, err := rabbitmq.NewPublisher(config, rabbitmq.PublisherConfig{})
			require.NoError(t, err)
			t.Cleanup(func() {
				assert.NoError(t, publisher.Close())
				deleteQueue(t, url, topic)
			})
			deliver(t, testdb.On(t, "postgres"), broker{
				topic: topic, publisher: publisher,
				subscriber: func() message.Subscriber {
					s, err := rabbitmq.NewSubscriber(config, rabbitmq.SubscriberConfig{CloseTimeout: 100 * time.Millisecond})
					require.NoError(t, err)
					return s
				},
			})
		})
	}
}

// plain leaves out what is told of the delivery, so that messages are as they were published.
type plain struct{ rabbitmq.Marshaler }

func (p plain) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	msg, err := p.Marshaler.Unmarshal(d)
	if err == nil {
		maps.DeleteFunc(msg.Metadata, func(name, _ string) bool {
			return strings.HasPrefix(name, "_millrace_amqp_")
		})
	}
	return msg, err
}

func TestMillraceSQL(t *testing.T) {
	for _, dialect := range []string{"postgres", "mysql"} {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			db, topic := testdb.On(t, dialect), freshTopic()
			publisher, err := watermillsql.NewPublisher(db.DB, watermillsql.Config{})
			require.NoError(t, err)
			require.NoError(t, publisher.Initialize(t.Context(), topic))
			deliver(t, db, broker{
				topic: topic, publisher: publisher,
				subscriber: func() message.Subscriber {
					s, err := watermillsql.NewSubscriber(db.DB, watermillsql.SubscriberConfig{
						ConsumerGroup: "billing",
						PollInterval:  5 * time.Millisecond, ResendInterval: 5 * time.Millisecond, RetryInterval: 50 * time.Millisecond,
					})
					require.NoError(t, err)
					return s
				},
			})
		})
	}
}
