package interop_test

import (
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/pubsub/rabbitmq"
	"github.com/millrace-go/millrace/tests/servers"
)

// Each node in turn leads the queue, or has the publisher or the subscriber, when it is killed.
func TestClusterRabbitMQKilled(t *testing.T) { onRabbitMQCluster(t, false, eachKilled) }

// The same when it is cut off: RabbitMQ may then give the next connection a message before it takes back the one in
// flight, so it promises no order.
func TestClusterRabbitMQCutOff(t *testing.T) { onRabbitMQCluster(t, true, eachCutOff) }

func onRabbitMQCluster(t *testing.T, unordered bool, faults func(nodes []*servers.Server, goesOn func())) {
	needsCluster(t)
	nodes := servers.RabbitMQCluster(t, 3)
	var addresses []string
	for _, n := range nodes {
		addresses = append(addresses, n.Addr())
	}
	topic, config := freshTopic(), rabbitmq.NewQueueConfig(nodes[0].URL(), rabbitmq.Queues{Quorum: true})
	config.Marshaler = plain{}
	config.Connection.AmqpConfig = &amqp091.Config{Dial: rabbitmq.Nodes(addresses...), Heartbeat: 4 * time.Second}
	awaitTopic(t, func() error { return rabbitmq.Declare(config, topic) })
	t.Log(versionOfRabbitMQ(t, nodes[0].URL()))
	publisher, err := rabbitmq.NewPublisher(config, rabbitmq.PublisherConfig{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, publisher.Close()) })
	endure(t, broker{
		topic: topic, publisher: publisher, unordered: unordered,
		subscriber: func() message.Subscriber {
			s, err := rabbitmq.NewSubscriber(config, rabbitmq.SubscriberConfig{CloseTimeout: 100 * time.Millisecond})
			require.NoError(t, err)
			return s
		},
	}, func(goesOn func()) { faults(nodes, goesOn) })
}

// eachNode kills the nodes and then cuts them off, one after the other.
func eachNode(nodes []*servers.Server) func(goesOn func()) {
	return func(goesOn func()) {
		eachKilled(nodes, goesOn)
		eachCutOff(nodes, goesOn)
	}
}

func eachKilled(nodes []*servers.Server, goesOn func()) {
	goesOn()
	for _, n := range nodes {
		n.Kill()
		goesOn()
		n.Start()
		goesOn()
	}
}

func eachCutOff(nodes []*servers.Server, goesOn func()) {
	goesOn()
	for _, n := range nodes {
		n.Freeze()
		time.Sleep(15 * time.Second)
		goesOn()
		n.Thaw()
		goesOn()
	}
}

func versionOfRabbitMQ(t *testing.T, url string) string {
	t.Helper()
	conn, err := amqp091.Dial(url)
	require.NoError(t, err)
	defer conn.Close() //nolint:errcheck // it only asked
	version, _ := conn.Properties["version"].(string)
	return strings.TrimSpace("RabbitMQ " + version)
}
