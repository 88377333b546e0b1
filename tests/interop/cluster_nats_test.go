package interop_test

import (
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/servers"
)

// The stream and its consumer have three replicas, of which each in turn is killed and then cut off.
// JetStream redelivers what was not acked behind what came later, so there is no order.
func TestClusterJetStream(t *testing.T) {
	needsCluster(t)
	nodes := servers.NATSCluster(t, 3)
	var urls []string
	for _, n := range nodes {
		urls = append(urls, n.URL())
	}
	url, topic := strings.Join(urls, ","), freshTopic()
	options := []nats.Option{nats.MaxReconnects(-1), nats.PingInterval(2 * time.Second), nats.ReconnectWait(200 * time.Millisecond)}
	conn, err := nats.Connect(url, options...)
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	t.Log("nats-server", conn.ConnectedServerVersion())
	js, err := conn.JetStream()
	require.NoError(t, err)
	awaitTopic(t, func() error {
		_, err := js.AddStream(&nats.StreamConfig{Name: topic, Subjects: []string{topic}, Replicas: 3})
		return err
	})
	awaitTopic(t, func() error {
		_, err := js.AddConsumer(topic, &nats.ConsumerConfig{
			Durable: "billing", AckPolicy: nats.AckExplicitPolicy, AckWait: 5 * time.Second, DeliverSubject: topic + "-billing",
			DeliverGroup: "billing", MaxAckPending: 100, Replicas: 3,
		})
		return err
	})
	stream := wmnats.JetStreamConfig{DurablePrefix: "billing", SubscribeOptions: []nats.SubOpt{nats.Bind(topic, "billing"), nats.ManualAck()}}
	publisher, err := wmnats.NewPublisher(wmnats.PublisherConfig{URL: url, NatsOptions: options, JetStream: stream}, watermill.NopLogger{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, publisher.Close()) })
	endure(t, broker{
		topic: topic, publisher: publisher, unordered: true,
		subscriber: func() message.Subscriber {
			s, err := wmnats.NewSubscriber(wmnats.SubscriberConfig{
				URL: url, NatsOptions: options, QueueGroupPrefix: "billing", JetStream: stream, AckWaitTimeout: 5 * time.Second,
			}, watermill.NopLogger{})
			require.NoError(t, err)
			return s
		},
	}, eachNode(nodes))
}
