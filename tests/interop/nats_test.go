package interop_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/testdb"
)

// A subscriber that made its durable consumer takes it along when it is closed, so the next
// one is given the whole stream again. Names of metadata that are not ASCII get lost, since
// NATS's header has none.
func TestJetStream(t *testing.T) {
	url, topic, db := service(t, "MILLRACE_TEST_NATS"), freshTopic(), testdb.On(t, "postgres")
	stream := wmnats.JetStreamConfig{
		AutoProvision: true, DurablePrefix: "billing",
		SubscribeOptions: []nats.SubOpt{nats.DeliverAll(), nats.AckExplicit(), nats.AckWait(5 * time.Second)},
	}
	publisher, err := wmnats.NewPublisher(wmnats.PublisherConfig{URL: url, JetStream: stream}, watermill.NopLogger{})
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, publisher.Close())
		deleteStream(t, url, topic)
	})
	deliver(t, db, broker{
		topic: topic, publisher: publisher,
		subscriber: func() message.Subscriber {
			s, err := wmnats.NewSubscriber(wmnats.SubscriberConfig{
				URL: url, QueueGroupPrefix: "billing", JetStream: stream,
			}, watermill.NopLogger{})
			require.NoError(t, err)
			return s
		},
		loses: []string{"ключ"},
	})
}

func deleteStream(t *testing.T, url, name string) {
	t.Helper()
	conn, err := nats.Connect(url)
	require.NoError(t, err)
	defer conn.Close()
	js, err := conn.JetStream()
	require.NoError(t, err)
	assert.NoError(t, js.DeleteStream(name))
}
