package interop_test

import (
	"testing"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/millrace-go/millrace/tests/testdb"
)

// The brokers are those of kfake, which speak Kafka's protocol in this process.
func TestKafka(t *testing.T) {
	topic := freshTopic()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(3), kfake.SeedTopics(3, topic))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	byKey := kafka.NewWithPartitioningMarshaler(func(_ string, msg *message.Message) (string, error) {
		return msg.Metadata.Get("key"), nil
	})
	publisher, err := kafka.NewPublisher(kafka.PublisherConfig{
		Brokers: cluster.ListenAddrs(), Marshaler: byKey,
	}, watermill.NopLogger{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, publisher.Close()) })
	fromTheBeginning := kafka.DefaultSaramaSubscriberConfig()
	fromTheBeginning.Consumer.Offsets.Initial = sarama.OffsetOldest
	deliver(t, testdb.On(t, "mysql"), broker{
		topic: topic, publisher: publisher,
		subscriber: func() message.Subscriber {
			s, err := kafka.NewSubscriber(kafka.SubscriberConfig{
				Brokers: cluster.ListenAddrs(), ConsumerGroup: "billing", Unmarshaler: byKey,
				OverwriteSaramaConfig: fromTheBeginning,
			}, watermill.NopLogger{})
			require.NoError(t, err)
			return s
		},
	})
}
