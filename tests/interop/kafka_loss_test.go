package interop_test

import (
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// What watermill-kafka does without settings, which docs/kafka.md warns of.
func TestKafkaDefaults(t *testing.T) {
	producer, consumer := kafka.DefaultSaramaSyncPublisherConfig(), kafka.DefaultSaramaSubscriberConfig()
	assert.Equal(t, sarama.WaitForLocal, producer.Producer.RequiredAcks)
	assert.False(t, producer.Producer.Idempotent)
	assert.Equal(t, sarama.OffsetNewest, consumer.Consumer.Offsets.Initial)
	assert.Equal(t, time.Minute, consumer.Consumer.Group.Rebalance.Timeout)
	assert.Equal(t, sarama.ReadUncommitted, consumer.Consumer.IsolationLevel)
	assert.NoError(t, safeProducer().Validate())
	assert.NoError(t, safeConsumer().Validate())
}

// A topic with one replica has its messages confirmed, whatever min.insync.replicas says.
func TestKafkaMinInsyncReplicasOfOneReplica(t *testing.T) {
	t.Parallel()
	brokers, two := []string{service(t, "MILLRACE_TEST_KAFKA")}, "2"
	topic := createTopic(t, brokers, &sarama.TopicDetail{
		NumPartitions: 1, ReplicationFactor: 1, ConfigEntries: map[string]*string{"min.insync.replicas": &two},
	})
	assert.NoError(t, kafkaPublisher(t, brokers, safeProducer()).Publish(topic, message.NewMessage("confirmed", nil)))
}

// A group without an offset, or with one that Kafka has deleted, begins at Offsets.Initial: by default behind everything that is
// there.
func TestKafkaOffsetsThatAreGone(t *testing.T) {
	t.Parallel()
	brokers := []string{service(t, "MILLRACE_TEST_KAFKA")}
	topic := createTopic(t, brokers, &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: 1})
	publisher, cluster := kafkaPublisher(t, brokers, safeProducer()), kafkaAdmin(t, brokers)
	send := func(uuid string) { require.NoError(t, publisher.Publish(topic, message.NewMessage(uuid, nil))) }
	receive := func(config *sarama.Config, then func()) (uuid string) {
		members := newSessions()
		subscriber := kafkaSubscriber(t, brokers, topic, config, members)
		messages, err := subscriber.Subscribe(t.Context(), topic)
		require.NoError(t, err)
		require.NoError(t, happens(members.claimed, "the member has its partition"))
		then()
		msg := rig.Within(t, messages, "a message")
		msg.Ack()
		require.NoError(t, subscriber.Close())
		return msg.UUID
	}
	fromTheEnd := safeConsumer()
	fromTheEnd.Consumer.Offsets.Initial = sarama.OffsetNewest
	send("0, before the group")
	assert.Equal(t, "0, before the group", receive(safeConsumer(), func() {}))
	send("1, deleted by Kafka")
	send("2, kept by Kafka")
	require.NoError(t, cluster.DeleteRecords(topic, map[int32]int64{0: 2}))
	assert.Equal(t, "3, after the group", receive(fromTheEnd, func() { send("3, after the group") }), "2 is skipped")
	require.NoError(t, cluster.DeleteConsumerGroup(topic))
	assert.Equal(t, "2, kept by Kafka", receive(safeConsumer(), func() {}))
}

// A topic that was deleted and created again has new messages at the places of old ones. The inbox parks them.
func TestKafkaPositionsOfATopicMadeAnew(t *testing.T) {
	t.Parallel()
	group := "billing"
	b := newKafka(t, &group)
	store := rig.NewStore(t, testdb.On(t, "postgres").DB, inbox.Config{})
	handled := make(chan string, 1)
	run := func() (stop func()) {
		router := rig.NewRouter(t)
		millrace.Inbox{Store: store, Key: inbox.ByPosition(kafkaPosition)}.AddTo(router)
		router.AddConsumerHandler("billing", b.topic, b.subscriber(), func(msg *message.Message) error {
			handled <- msg.UUID
			return nil
		})
		ended := rig.Run(t, router)
		return func() {
			require.NoError(t, router.Close())
			require.NoError(t, <-ended)
		}
	}
	send := func(uuid string) {
		m := message.NewMessage(uuid, []byte(uuid))
		m.Metadata.Set("key", "a")
		require.NoError(t, b.publisher.Publish(b.topic, m))
	}
	send("old")
	stop := run()
	require.Equal(t, "old", rig.Within(t, handled, "the message"))
	stop()
	cluster := kafkaAdmin(t, []string{service(t, "MILLRACE_TEST_KAFKA")})
	require.NoError(t, cluster.DeleteTopic(b.topic))
	rig.Eventually(t, "the topic is made anew", func() bool {
		return cluster.CreateTopic(b.topic, &sarama.TopicDetail{NumPartitions: 3, ReplicationFactor: 1}, false) == nil
	})
	send("new")
	stop = run()
	rig.Eventually(t, "it is parked", func() bool { return len(rig.Parked(t, store)) == 1 })
	stop()
	assert.Equal(t, "new", rig.Parked(t, store)[0].UUID)
	assert.Empty(t, handled)
}

// sessions tells when a member got its partitions and looked up where to begin.
type sessions struct {
	kafka.OTELSaramaTracer
	claimed chan struct{}
}

func newSessions() sessions { return sessions{claimed: make(chan struct{})} }

func (s sessions) WrapConsumerGroupHandler(h sarama.ConsumerGroupHandler) sarama.ConsumerGroupHandler {
	return claiming{h, s.claimed}
}

type claiming struct {
	sarama.ConsumerGroupHandler
	claimed chan struct{}
}

func (c claiming) ConsumeClaim(s sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	close(c.claimed)
	return c.ConsumerGroupHandler.ConsumeClaim(s, claim)
}
