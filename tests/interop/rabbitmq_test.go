package interop_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/testdb"
)

// Without confirms the publisher would return before RabbitMQ has the message.
func TestRabbitMQ(t *testing.T) {
	url, topic := service(t, "MILLRACE_TEST_RABBITMQ"), freshTopic()
	config := amqp.NewDurableQueueConfig(url)
	config.Publish.ConfirmDelivery = true
	publisher, err := amqp.NewPublisher(config, watermill.NopLogger{})
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, publisher.Close())
		deleteQueue(t, url, topic)
	})
	deliver(t, testdb.On(t, "postgres"), broker{
		topic: topic, publisher: publisher,
		subscriber: func() message.Subscriber {
			s, err := amqp.NewSubscriber(config, watermill.NopLogger{})
			require.NoError(t, err)
			return s
		},
	})
}

func deleteQueue(t *testing.T, url, name string) {
	t.Helper()
	conn, err := amqp091.Dial(url)
	require.NoError(t, err)
	channel, err := conn.Channel()
	require.NoError(t, err)
	_, err = channel.QueueDelete(name, false, false, false)
	assert.NoError(t, err)
	assert.NoError(t, conn.Close())
}
