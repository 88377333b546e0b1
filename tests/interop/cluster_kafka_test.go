package interop_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/servers"
	"github.com/millrace-go/millrace/tests/testdb"
)

// Three brokers die and come back one after another under load. Nothing that was committed is lost or doubled, and each key
// keeps its order.
func TestClusterKafkaBrokersKilledUnderLoad(t *testing.T) {
	c := newCluster(t)
	group := "billing"
	topic := c.createTopic(&sarama.TopicDetail{NumPartitions: 3, ReplicationFactor: 3})
	patient := safeProducer()
	patient.Producer.Retry.Max = 300 // for the copies, which go past the relay
	p := newPipeline(t, testdb.On(t, "postgres"), broker{
		topic: topic, publisher: kafkaPublisher(t, c.addrs, patient),
		subscriber: func() message.Subscriber { return kafkaSubscriber(t, c.addrs, group, safeConsumer(), nil) },
	})
	closed := p.launch().closeAt(p.interrupted, "the handler is interrupted")
	relayUntilTheEnd(t, p.db, p.broker.publisher)
	p.produce(40)
	require.NoError(t, <-closed)
	members := []*process{p.launch(), p.launch()}
	killed := make(chan struct{})
	t.Cleanup(func() { <-killed })
	go func() {
		defer close(killed)
		for partition := range int32(3) {
			leader := c.leader(topic, partition)
			leader.Kill()
			c.awaitLeaderOtherThan(leader, topic, partition)
			leader.Start()
			c.awaitInSync(topic, 3)
		}
	}()
	for running := true; running; {
		p.produce(1)
		select {
		case <-killed:
			running = false
		default:
		}
	}
	p.produce(20)
	require.EventuallyWithT(t, p.done, 4*rig.Patience, 50*time.Millisecond)
	for _, m := range members {
		require.NoError(t, m.close())
	}
	p.reconcile()
	p.checkOrder()
}

// By default watermill-kafka's publisher waits for the leader alone, whatever min.insync.replicas says. If the leader dies
// before the others have copied the message, it is lost, though its successor was in sync and the relay has forgotten it.
// With WaitForAll the relay keeps it until it is safe.
func TestClusterKafkaConfirms(t *testing.T) {
	c := newCluster(t)
	group := "billing"
	topic := c.createTopic(&sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: 3})
	hasty := safeProducer()
	hasty.Producer.Timeout, hasty.Producer.Retry.Max = time.Second, 1
	hasty.Net.ReadTimeout, hasty.Metadata.Retry.Max = 2*time.Second, 0 // the frozen brokers do not answer
	unsafe, safe := kafkaPublisher(t, c.addrs, nil), &refused{Publisher: kafkaPublisher(t, c.addrs, hasty)}
	p := newPipeline(t, testdb.On(t, "postgres"), broker{topic: topic, publisher: safe, subscriber: func() message.Subscriber {
		return kafkaSubscriber(t, c.addrs, group, safeConsumer(), nil)
	}})
	warm := message.NewMessage("warm", nil)
	require.NoError(t, unsafe.Publish(topic, warm))
	require.NoError(t, safe.Publish(topic, warm))
	leader := c.leader(topic, 0)
	for _, b := range c.brokers {
		if b != leader {
			b.Freeze()
			defer b.Thaw() // a publisher that is closed asks them
		}
	}
	// The followers had asked for the next message: this one is the answer, which awaits them.
	require.Error(t, safe.Publish(topic, message.NewMessage("not confirmed", nil)))
	require.NoError(t, unsafe.Publish(topic, message.NewMessage("lost", nil)))
	relayUntilTheEnd(t, p.db, p.broker.publisher)
	p.numbers = 1 // of which there are no copies, that go past the relay
	p.produce(1)
	rig.Eventually(t, "the relay cannot send", func() bool { return safe.times.Load() > 1 })
	leader.Kill()
	for _, b := range c.brokers {
		b.Thaw()
	}
	c.awaitLeaderOtherThan(leader, topic, 0)
	leader.Start()
	s := p.launch()
	require.EventuallyWithT(t, p.done, 2*rig.Patience, 20*time.Millisecond)
	require.NoError(t, s.close())
	assert.NotZero(t, p.seen.of("warm").deliveries)
	assert.Zero(t, p.seen.of("lost").deliveries, "it was confirmed by the leader alone")
}

// An unclean leader election loses what was confirmed with WaitForAll, and the group skips messages that take the places of
// lost ones: nothing that Millrace does can help.
func TestClusterKafkaUncleanElection(t *testing.T) {
	c := newCluster(t)
	yes, one := "true", "1"
	topic := c.createTopic(&sarama.TopicDetail{
		NumPartitions: -1, ReplicationFactor: -1, ReplicaAssignment: map[int32][]int32{0: {1, 2}},
		ConfigEntries: map[string]*string{"unclean.leader.election.enable": &yes, "min.insync.replicas": &one},
	})
	publisher := kafkaPublisher(t, c.addrs, safeProducer())
	send := func(uuid string) {
		t.Helper()
		require.Eventually(t, func() bool { return publisher.Publish(topic, message.NewMessage(uuid, nil)) == nil },
			rig.Patience, 50*time.Millisecond, uuid)
	}
	receive := func(group string, n int) (uuids []string) {
		t.Helper()
		subscriber := kafkaSubscriber(t, c.addrs, group, safeConsumer(), nil)
		messages, err := subscriber.Subscribe(t.Context(), topic)
		require.NoError(t, err)
		for range n {
			msg := rig.Within(t, messages, "a message")
			msg.Ack()
			uuids = append(uuids, msg.UUID)
		}
		awaitCommitted(t, c.addrs, group, topic, 0, int64(len(uuids)))
		require.NoError(t, subscriber.Close())
		return uuids
	}
	first, second := c.brokers[0], c.brokers[1]
	require.Equal(t, first, c.leader(topic, 0))
	send("0")
	second.Kill()
	c.awaitInSync(topic, 1)
	send("1, confirmed by all replicas in sync, which is one")
	assert.Len(t, receive("billing", 2), 2)
	first.Kill()
	second.Start()
	c.awaitLeaderOtherThan(first, topic, 0)
	first.Start()
	c.awaitInSync(topic, 2)
	send("1, again")
	send("2")
	assert.Equal(t, []string{"0", "1, again", "2"}, receive("another group", 3))
	subscriber := kafkaSubscriber(t, c.addrs, "billing", safeConsumer(), nil)
	messages, err := subscriber.Subscribe(t.Context(), topic)
	require.NoError(t, err)
	assert.Equal(t, "2", rig.Within(t, messages, "a message").UUID, "the group goes on behind the places that it knows")
	require.NoError(t, subscriber.Close())
}

// refused counts the errors of a publisher.
type refused struct {
	message.Publisher
	times atomic.Int32
}

func (r *refused) Publish(topic string, msgs ...*message.Message) error {
	err := r.Publisher.Publish(topic, msgs...)
	if err != nil {
		r.times.Add(1)
	}
	return err
}

// cluster is three brokers, of which two make a quorum.
type cluster struct {
	*testing.T
	brokers []*servers.Server // by node id, less one
	addrs   []string
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	needsCluster(t)
	c := &cluster{T: t, brokers: servers.Kafka(t, 3, "min.insync.replicas=2")}
	for _, b := range c.brokers {
		c.addrs = append(c.addrs, b.Addr())
	}
	return c
}

func (c *cluster) createTopic(detail *sarama.TopicDetail) string {
	c.Helper()
	topic := freshTopic()
	require.NoError(c, kafkaAdmin(c.T, c.addrs).CreateTopic(topic, detail, false))
	return topic
}

// partition describes a partition as a broker that runs knows it.
func (c *cluster) partition(topic string, id int32) *sarama.PartitionMetadata {
	config := safeConsumer()
	config.Metadata.Retry.Max, config.Admin.Retry.Max = 0, 0
	config.Net.DialTimeout, config.Net.ReadTimeout = time.Second, time.Second
	admin, err := sarama.NewClusterAdmin(c.addrs, config)
	if err != nil {
		return nil
	}
	defer admin.Close() //nolint:errcheck // it only asked
	topics, err := admin.DescribeTopics([]string{topic})
	if err != nil || len(topics) == 0 {
		return nil
	}
	for _, p := range topics[0].Partitions {
		if p.ID == id {
			return p
		}
	}
	return nil
}

func (c *cluster) leader(topic string, partition int32) (leader *servers.Server) {
	c.Helper()
	c.eventually("a leader", topic, partition, func(p *sarama.PartitionMetadata) bool {
		if p.Leader > 0 {
			leader = c.brokers[p.Leader-1]
		}
		return p.Leader > 0
	})
	return leader
}

func (c *cluster) awaitLeaderOtherThan(old *servers.Server, topic string, partition int32) {
	c.Helper()
	c.eventually("another leader", topic, partition, func(p *sarama.PartitionMetadata) bool {
		return p.Leader > 0 && c.brokers[p.Leader-1] != old
	})
}

// awaitInSync waits until n replicas of the first partitions of a topic are in sync.
func (c *cluster) awaitInSync(topic string, n int) {
	c.Helper()
	c.eventually("replicas in sync", topic, 0, func(p *sarama.PartitionMetadata) bool { return len(p.Isr) == n })
}

func (c *cluster) eventually(what, topic string, partition int32, holds func(*sarama.PartitionMetadata) bool) {
	c.Helper()
	var last *sarama.PartitionMetadata
	if !assert.Eventually(c, func() bool {
		last = c.partition(topic, partition)
		return last != nil && holds(last)
	}, 2*rig.Patience, 50*time.Millisecond, what) {
		c.Logf("the partition at last: %+v", last)
	}
}
