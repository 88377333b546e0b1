package interop_test

import (
	"testing"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/rig"
)

// safeProducer and safeConsumer are what docs/kafka.md shows.

func safeProducer() *sarama.Config {
	config := kafka.DefaultSaramaSyncPublisherConfig()
	config.Version = sarama.V2_4_0_0
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Net.MaxOpenRequests = 1
	return config
}

func safeConsumer() *sarama.Config {
	config := kafka.DefaultSaramaSubscriberConfig()
	config.Version = sarama.V2_4_0_0
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	return config
}

// byKey gives messages of one order key to one partition.
var byKey = kafka.NewWithPartitioningMarshaler(func(_ string, msg *message.Message) (string, error) {
	return msg.Metadata.Get("key"), nil
})

// newKafka returns a topic of three partitions. A new subscriber belongs to the group that is named then.
func newKafka(t *testing.T, group *string) broker {
	t.Helper()
	brokers := []string{service(t, "MILLRACE_TEST_KAFKA")}
	topic := createTopic(t, brokers, &sarama.TopicDetail{NumPartitions: 3, ReplicationFactor: 1})
	return broker{
		topic: topic, publisher: kafkaPublisher(t, brokers, safeProducer()),
		subscriber: func() message.Subscriber { return kafkaSubscriber(t, brokers, *group, safeConsumer(), nil) },
	}
}

func kafkaPublisher(t *testing.T, brokers []string, config *sarama.Config) *kafka.Publisher {
	t.Helper()
	publisher, err := kafka.NewPublisher(kafka.PublisherConfig{
		Brokers: brokers, Marshaler: byKey, OverwriteSaramaConfig: config,
	}, watermill.NopLogger{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, publisher.Close()) })
	return publisher
}

func kafkaSubscriber(t *testing.T, brokers []string, group string, config *sarama.Config, tracer kafka.SaramaTracer) *kafka.Subscriber {
	t.Helper()
	subscriber, err := kafka.NewSubscriber(kafka.SubscriberConfig{
		Brokers: brokers, ConsumerGroup: group, Unmarshaler: byKey, OverwriteSaramaConfig: config, Tracer: tracer,
	}, watermill.NopLogger{})
	require.NoError(t, err)
	return subscriber
}

func kafkaAdmin(t *testing.T, brokers []string) sarama.ClusterAdmin {
	t.Helper()
	cluster, err := sarama.NewClusterAdmin(brokers, safeConsumer())
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, cluster.Close()) })
	return cluster
}

// createTopic returns a topic that is deleted when the test ends.
func createTopic(t *testing.T, brokers []string, detail *sarama.TopicDetail) string {
	t.Helper()
	topic, cluster := freshTopic(), kafkaAdmin(t, brokers)
	require.NoError(t, cluster.CreateTopic(topic, detail, false))
	t.Cleanup(func() { assert.NoError(t, cluster.DeleteTopic(topic)) })
	return topic
}

// awaitCommitted waits until a group's offset of a partition is n, the number of messages that it has done.
func awaitCommitted(t *testing.T, brokers []string, group, topic string, partition int32, n int64) {
	t.Helper()
	cluster := kafkaAdmin(t, brokers)
	rig.Eventually(t, "the group commits its offset", func() bool {
		answer, err := cluster.ListConsumerGroupOffsets(group, map[string][]int32{topic: {partition}})
		return err == nil && answer.GetBlock(topic, partition) != nil && answer.GetBlock(topic, partition).Offset == n
	})
}
