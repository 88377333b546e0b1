package rabbitmq_test

import (
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/pubsub/rabbitmq"
)

// TestAPasswordThatIsNotEscapedIsNotShown: services log the error of a constructor, and end.
func TestAPasswordThatIsNotEscapedIsNotShown(t *testing.T) {
	t.Parallel()
	ends := map[string]func(amqp.Config) error{
		"NewPublisher": func(broker amqp.Config) error {
			_, err := rabbitmq.NewPublisher(broker, rabbitmq.PublisherConfig{})
			return err
		},
		"NewSubscriber": func(broker amqp.Config) error {
			_, err := rabbitmq.NewSubscriber(broker, rabbitmq.SubscriberConfig{})
			return err
		},
		"Declare": func(broker amqp.Config) error { return rabbitmq.Declare(broker, "orders") },
		"Requeue": func(broker amqp.Config) error {
			_, err := rabbitmq.Requeue(t.Context(), broker, "orders", rabbitmq.RequeueConfig{})
			return err
		},
	}
	for _, uri := range []string{
		"amqp://shop:p4ss%p4@mq.invalid/", "amqp://shop:p4ss/p4@mq.invalid/", "amqp://shop:p4ss?p4@mq.invalid/", "amqp://shop:p4ss#p4@mq.invalid/",
		"amqp://shop:4040404040404040404040#x@mq.invalid/",
	} {
		for name, end := range ends {
			for _, dial := range []*amqp091.Config{nil, {Dial: rabbitmq.Nodes("mq.invalid:5672")}} {
				broker := rabbitmq.NewQueueConfig(uri, rabbitmq.Queues{})
				broker.Connection.AmqpConfig = dial
				err := end(broker)
				require.ErrorContains(t, err, "AmqpURI is not a URL: are @ : / ? # and % in its password escaped?", "%s, %s", name, uri)
				for ; err != nil; err = errors.Unwrap(err) {
					assert.NotContains(t, err.Error(), "p4", "%s, %s", name, uri)
					assert.NotContains(t, err.Error(), "4040", "%s, %s", name, uri)
				}
			}
		}
	}
	err := rabbitmq.Declare(rabbitmq.NewQueueConfig("http://shop:p4ss@mq.invalid/", rabbitmq.Queues{}), "orders")
	require.ErrorContains(t, err, "AmqpURI: AMQP scheme must be", "what is wrong is said where it is not secret")
	assert.NotContains(t, err.Error(), "p4ss")
}
