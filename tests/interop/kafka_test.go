package interop_test

import (
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestKafka(t *testing.T) {
	group := "billing"
	deliver(t, testdb.On(t, "mysql"), newKafka(t, &group))
}

// The offsets of a group are set back to the beginning: another group has none. What it is given
// again has no effect again.
func TestKafkaOffsetReset(t *testing.T) {
	group := "billing"
	p := newPipeline(t, testdb.On(t, "postgres"), newKafka(t, &group))
	p.relay()
	p.produce(10)
	first := p.launch()
	require.EventuallyWithT(t, p.done, rig.Patience, 20*time.Millisecond)
	require.NoError(t, first.close())
	before := map[string]int{}
	for uuid := range p.committed {
		before[uuid] = p.seen.of(uuid).acks
	}
	group = "billing-from-the-beginning"
	p.produce(3)
	second := p.launch()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		p.done(c)
		for uuid, acks := range before {
			assert.Greater(c, p.seen.of(uuid).acks, acks, uuid)
		}
	}, rig.Patience, 20*time.Millisecond)
	require.NoError(t, second.close())
	p.reconcile()
}

// newKafka returns a topic whose brokers are those of kfake, which speak Kafka's protocol in this
// process. A new subscriber belongs to the group that is named then.
func newKafka(t *testing.T, group *string) broker {
	t.Helper()
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
	return broker{
		topic: topic, publisher: publisher,
		subscriber: func() message.Subscriber {
			s, err := kafka.NewSubscriber(kafka.SubscriberConfig{
				Brokers: cluster.ListenAddrs(), ConsumerGroup: *group, Unmarshaler: byKey,
				OverwriteSaramaConfig: fromTheBeginning,
			}, watermill.NopLogger{})
			require.NoError(t, err)
			return s
		},
	}
}
