package interop_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// A member of a group of consumers joins while the other one handles a message. The other one's offset counts no more when the
// handler ends, so the message is delivered again; if the handler outlasts the wait for it, while it still runs. The
// message has one effect.
func TestKafkaRebalanceWhileAHandlerRuns(t *testing.T) {
	t.Parallel()
	strategies := map[string]sarama.BalanceStrategy{
		"range": sarama.NewBalanceStrategyRange(), "sticky": sarama.NewBalanceStrategySticky(),
	}
	for name, strategy := range strategies {
		for title, outlasts := range map[string]bool{"the group waits for the handler": false, "the group goes on without it": true} {
			t.Run(name+", "+title, func(t *testing.T) {
				t.Parallel()
				g := newGroup(t)
				g.config = func(_ string, c *sarama.Config) {
					c.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{strategy}
					c.Consumer.Group.Rebalance.Timeout = rig.Patience
					if outlasts {
						c.Consumer.Group.Rebalance.Timeout = time.Second
					}
				}
				entered, goOn := g.halt("slow")
				first := g.join("first")
				slow := g.send("slow")
				g.await(entered, "the handler runs")
				second := g.join("second")
				g.await(first.session(0).Context().Done(), "the first member's session ends")
				if outlasts {
					rig.Eventually(t, "the second member is given the message", func() bool { return second.delivered(slow) > 0 })
					assert.Zero(t, g.effects(slow), "effects while the handler runs")
				}
				goOn()
				rig.Eventually(t, "it is delivered again", func() bool { return first.delivered(slow)+second.delivered(slow) > 1 })
				g.awaitCommitted(slow, 1)
				assert.Equal(t, 1, g.effects(slow))
				assert.Equal(t, 1, g.runs(slow), "runs of the handler")
				rig.Eventually(t, "the members share the partitions", func() bool { return first.partitions()+second.partitions() == 3 && first.partitions() > 0 })
			})
		}
	}
}

// A message that is nacked again and again holds up its partition alone, until the group is balanced anew: its member then
// does not come to join, and after the time for it the group goes on without it. With pubsub.Durable nothing is nacked.
func TestKafkaPoisonMessage(t *testing.T) {
	t.Parallel()
	for name, durable := range map[string]bool{"alone": false, "with pubsub.Durable": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGroup(t)
			g.durable = durable
			g.config = func(_ string, c *sarama.Config) { c.Consumer.Group.Rebalance.Timeout = time.Second }
			g.poison("poison")
			first := g.join("first")
			poison := g.send("poison")
			rig.Eventually(t, "it is tried again", func() bool { return g.runs(poison) > 2 })
			others := []*message.Message{g.send("a"), g.send("b"), g.send("c"), g.send("d"), g.send("e")}
			for _, m := range others {
				if durable || partition(t, m) != partition(t, poison) {
					rig.Eventually(t, "others are handled", func() bool { return g.effects(m) == 1 })
				} else {
					assert.Zero(t, g.effects(m), "effects of a message behind the poison")
				}
			}
			second := g.join("second")
			rig.Eventually(t, "the group is balanced", func() bool { return second.partitions() > 0 })
			if durable {
				rig.Eventually(t, "both are members", func() bool { return first.partitions()+second.partitions() == 3 })
			} else {
				assert.Equal(t, 3, second.partitions(), "the second has all")
				tried := first.delivered(poison)
				rig.Eventually(t, "both try it", func() bool { return first.delivered(poison) > tried && second.delivered(poison) > 1 })
			}
			g.mend()
			for _, m := range append(others, poison) {
				rig.Eventually(t, "all is handled", func() bool { return g.effects(m) == 1 })
			}
			rig.Eventually(t, "both are members", func() bool { return first.partitions()+second.partitions() == 3 && first.partitions() > 0 })
		})
	}
}

// A static member that is restarted gets its partitions back, and the others notice nothing. Without InstanceId a restart is two
// rebalances.
func TestKafkaStaticMembership(t *testing.T) {
	t.Parallel()
	for name, static := range map[string]bool{"static": true, "dynamic": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGroup(t)
			g.config = func(name string, c *sarama.Config) {
				if static {
					c.Consumer.Group.InstanceId, c.Consumer.Group.Session.Timeout = name, time.Minute // within which it is back
				}
			}
			first, second := g.join("first"), g.join("second")
			rig.Eventually(t, "the members share the partitions", func() bool { return first.partitions()+second.partitions() == 3 && first.partitions() > 0 })
			sessions, had := first.sessionCount(), second.partitions()
			second.leave()
			if !static {
				rig.Eventually(t, "the first member has all", func() bool { return first.partitions() == 3 })
			}
			var sent []*message.Message
			for _, key := range []string{"a", "b", "c", "d", "e", "f"} {
				sent = append(sent, g.send(key))
			}
			second = g.join("second")
			for _, m := range sent {
				rig.Eventually(t, "all is handled", func() bool { return g.effects(m) == 1 })
			}
			if static {
				assert.Equal(t, sessions, first.sessionCount(), "sessions of the member that stayed")
				assert.Equal(t, had, second.partitions())
			} else {
				assert.Greater(t, first.sessionCount(), sessions)
			}
		})
	}
}

// Two processes with one InstanceId take the partitions from each other, for ever. Each message still has one effect.
func TestKafkaTwoStaticMembersOfOneName(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	g.config = func(_ string, c *sarama.Config) { c.Consumer.Group.InstanceId = "one" }
	first, second := g.join("first"), g.join("second")
	one, other := first.sessionCount(), second.sessionCount()
	var sent []*message.Message
	rig.Eventually(t, "each takes them again", func() bool {
		sent = append(sent, g.send("a"), g.send("b"), g.send("c"))
		return first.sessionCount() > one && second.sessionCount() > other
	})
	for _, m := range sent {
		rig.Eventually(t, "all is handled", func() bool { return g.effects(m) > 0 })
		assert.Equal(t, 1, g.effects(m))
	}
}

// group is a consumer group whose members are services with one inbox.
type group struct {
	*testing.T
	brokers   []string
	name      string
	topic     string
	db        *testdb.DB
	publisher message.Publisher
	config    func(member string, c *sarama.Config)
	durable   bool

	mu     sync.Mutex
	ran    map[string]int // by UUID
	slow   string         // a key whose handler waits
	failed string         // a key whose handler fails
	began  chan struct{}
	end    chan struct{}
}

func newGroup(t *testing.T) *group {
	t.Helper()
	brokers := []string{service(t, "MILLRACE_TEST_KAFKA")}
	g := &group{
		T: t, brokers: brokers, name: freshTopic(), db: testdb.On(t, "postgres"), config: func(string, *sarama.Config) {},
		topic:     createTopic(t, brokers, &sarama.TopicDetail{NumPartitions: 3, ReplicationFactor: 1}),
		publisher: kafkaPublisher(t, brokers, safeProducer()),
		ran:       make(map[string]int),
	}
	g.db.Do(t, `CREATE TABLE effects (uuid VARCHAR(36))`)
	return g
}

// halt makes the first run of the handler for a key wait until goOn is called.
func (g *group) halt(key string) (entered <-chan struct{}, goOn func()) {
	g.slow, g.began, g.end = key, make(chan struct{}), make(chan struct{})
	goOn = sync.OnceFunc(func() { close(g.end) })
	g.Cleanup(goOn)
	return g.began, goOn
}

func (g *group) poison(key string) { g.failed = key }

func (g *group) mend() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.failed = ""
}

func (g *group) send(key string) *message.Message {
	g.Helper()
	m := message.NewMessage(watermill.NewUUID(), []byte(key))
	m.Metadata.Set("key", key)
	require.NoError(g, g.publisher.Publish(g.topic, m))
	return m
}

// partition returns where Kafka's clients put a key that byKey gives.
func partition(t *testing.T, m *message.Message) int32 {
	t.Helper()
	n, err := sarama.NewHashPartitioner("").Partition(&sarama.ProducerMessage{Key: sarama.StringEncoder(m.Metadata.Get("key"))}, 3)
	require.NoError(t, err)
	return n
}

func (g *group) awaitCommitted(m *message.Message, n int64) {
	g.Helper()
	awaitCommitted(g.T, g.brokers, g.name, g.topic, partition(g.T, m), n)
}

func (g *group) await(event <-chan struct{}, what string) {
	g.Helper()
	require.NoError(g, happens(event, what))
}

func (g *group) runs(m *message.Message) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ran[m.UUID]
}

func (g *group) effects(m *message.Message) (n int) {
	g.Helper()
	require.NoError(g, g.db.GetContext(g.Context(), &n, g.db.Rebind(`SELECT COUNT(*) FROM effects WHERE uuid = ?`), m.UUID))
	return n
}

func (g *group) handle(msg *message.Message) error {
	g.mu.Lock()
	g.ran[msg.UUID]++
	key, first := msg.Metadata.Get("key"), g.ran[msg.UUID] == 1
	slow, fails := key == g.slow && first, key == g.failed
	g.mu.Unlock()
	if slow {
		close(g.began)
		<-g.end
	}
	if fails {
		return errors.New("poison")
	}
	return rig.Exec(msg.Context(), `INSERT INTO effects (uuid) VALUES (?)`, msg.UUID)
}

// member is one process of a service. It is told of sessions as watermill-kafka's tracer.
type member struct {
	kafka.OTELSaramaTracer
	*group
	router *message.Router
	ended  <-chan error

	mu         sync.Mutex
	sessions   []sarama.ConsumerGroupSession
	deliveries []string
}

func (g *group) join(name string) *member {
	g.Helper()
	config := safeConsumer()
	config.Consumer.Group.Heartbeat.Interval = 100 * time.Millisecond // finds out of a rebalance
	g.config(name, config)
	m := &member{group: g, router: rig.NewRouter(g)}
	store := rig.NewStore(g, g.db.Open(g).DB, inbox.Config{})
	var subscriber message.Subscriber = kafkaSubscriber(g.T, g.brokers, g.name, config, m)
	if g.durable {
		var err error
		subscriber, err = pubsub.Durable{
			Store: store, Consumer: "billing", MaxAttempts: 1000, MinBackoff: 10 * time.Millisecond, MaxBackoff: 10 * time.Millisecond,
		}.Decorate(subscriber)
		require.NoError(g, err)
	}
	m.router.AddPlugin(store.Plugin())
	m.router.AddMiddleware(m.watch, millrace.Inbox{Store: store}.Middleware)
	m.router.AddConsumerHandler("billing", g.topic, subscriber, g.handle)
	m.ended = rig.Run(g, m.router)
	rig.Eventually(g, name+" is a member", func() bool { return m.sessionCount() > 0 || g.slow != "" })
	return m
}

func (m *member) leave() {
	m.Helper()
	require.NoError(m, m.router.Close())
	require.NoError(m, <-m.ended)
}

func (m *member) watch(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		m.mu.Lock()
		m.deliveries = append(m.deliveries, msg.UUID)
		m.mu.Unlock()
		return next(msg)
	}
}

func (m *member) delivered(msg *message.Message) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, uuid := range m.deliveries {
		if uuid == msg.UUID {
			n++
		}
	}
	return n
}

func (m *member) WrapConsumerGroupHandler(h sarama.ConsumerGroupHandler) sarama.ConsumerGroupHandler {
	return watched{h, m}
}

type watched struct {
	sarama.ConsumerGroupHandler
	member *member
}

func (w watched) Setup(session sarama.ConsumerGroupSession) error {
	w.member.mu.Lock()
	defer w.member.mu.Unlock()
	w.member.sessions = append(w.member.sessions, session)
	return w.ConsumerGroupHandler.Setup(session)
}

func (m *member) session(n int) sarama.ConsumerGroupSession {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sessions[n]
}

func (m *member) sessionCount() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.sessions)
}

// partitions returns how many the member has in a session that goes on.
func (m *member) partitions() (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.sessions) == 0 {
		return 0
	}
	if last := m.sessions[len(m.sessions)-1]; last.Context().Err() == nil {
		for _, claimed := range last.Claims() {
			n += len(claimed)
		}
	}
	return n
}
