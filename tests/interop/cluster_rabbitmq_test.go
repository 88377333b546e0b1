package interop_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/pubsub/rabbitmq"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/servers"
)

// Each node in turn leads the queue, or has the publisher or the subscriber, when it is killed. RabbitMQ may then give
// the next connection a message before it takes back the one in flight, so it promises no order.
func TestClusterRabbitMQKilled(t *testing.T) { onQuorumQueue{unordered: true}.endure(t, eachKilled) }

// The node is cut off that has both clients, and at first leads the queue.
func TestClusterRabbitMQCutOff(t *testing.T) {
	onQuorumQueue{together: true, unordered: true}.endure(t, eachCutOff)
}

// With a single active consumer RabbitMQ first takes the one in flight back, and waits for consumer_disconnected_timeout.
func TestClusterRabbitMQSingleActiveConsumerKilled(t *testing.T) {
	onQuorumQueue{together: true, singleActive: true}.endure(t, eachKilled)
}

func TestClusterRabbitMQSingleActiveConsumerCutOff(t *testing.T) {
	onQuorumQueue{singleActive: true}.endure(t, eachCutOff)
}

// A channel of RabbitMQ 3.10, the machine's own, asks the leader first, and refuses messages as long as that is cut off.
func TestClusterRabbitMQPublishesWhileTheLeaderIsCutOff(t *testing.T) {
	needsCluster(t)
	t.Setenv("MILLRACE_TEST_RABBITMQ_ROOT", "")
	nodes := servers.RabbitMQCluster(t, 3)
	topic, queues := freshTopic(), rabbitmq.Queues{Quorum: true}
	awaitTopic(t, func() error { return rabbitmq.Declare(rabbitmq.NewQueueConfig(nodes[0].URL(), queues), topic) })
	t.Log(versionOfRabbitMQ(t, nodes[0].URL()))
	publisher, err := rabbitmq.NewPublisher(rabbitmq.NewQueueConfig(nodes[1].URL(), queues), rabbitmq.PublisherConfig{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, publisher.Close()) })
	publish := func() error { return publisher.Publish(topic, message.NewMessage(watermill.NewUUID(), nil)) }
	nodes[0].Freeze()
	t.Cleanup(nodes[0].Thaw)
	began := time.Now()
	var first sync.WaitGroup
	for range 4 { // each opens a channel
		first.Go(func() {
			if err := publish(); err != nil {
				t.Logf("after %v: %v", time.Since(began), err)
			}
		})
	}
	first.Wait()
	require.EventuallyWithT(t, func(c *assert.CollectT) { assert.NoError(c, publish()) }, rig.Patience, time.Second)
	t.Logf("published after %v", time.Since(began))
}

type onQuorumQueue struct {
	together     bool // the clients begin at one node
	singleActive bool
	unordered    bool
}

func (q onQuorumQueue) endure(t *testing.T, faults func(nodes []*servers.Server, goesOn func())) {
	needsCluster(t)
	nodes := servers.RabbitMQCluster(t, 3)
	var addresses []string
	for _, n := range nodes {
		addresses = append(addresses, n.Addr())
	}
	topic, config := freshTopic(), rabbitmq.NewQueueConfig(nodes[0].URL(), rabbitmq.Queues{Quorum: true})
	config.Marshaler = plain{}
	if q.singleActive {
		config.Queue.Arguments[amqp091.SingleActiveConsumerArg] = true
	}
	inTurn := rabbitmq.Nodes(addresses...)
	begin := func() amqp.Config {
		if q.together {
			inTurn = rabbitmq.Nodes(addresses...)
		}
		config.Connection.AmqpConfig = &amqp091.Config{Dial: inTurn, Heartbeat: 4 * time.Second}
		return config
	}
	awaitTopic(t, func() error { return rabbitmq.Declare(begin(), topic) })
	t.Log(versionOfRabbitMQ(t, nodes[0].URL()))
	publisher, err := rabbitmq.NewPublisher(begin(), rabbitmq.PublisherConfig{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, publisher.Close()) })
	endure(t, broker{
		topic: topic, publisher: publisher, unordered: q.unordered,
		// The nodes give one up after 10 s (net_ticktime 8), and take 5 s to take messages back from its consumer. Then a
		// channel may try for 7 s to reach it, twice, and a relay pauses for 5 s at most. The rest is for a busy machine.
		standstill: 45 * time.Second,
		subscriber: func() message.Subscriber {
			s, err := rabbitmq.NewSubscriber(begin(), rabbitmq.SubscriberConfig{CloseTimeout: 100 * time.Millisecond})
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
