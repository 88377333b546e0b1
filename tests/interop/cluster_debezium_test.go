package interop_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/servers"
	"github.com/millrace-go/millrace/tests/testdb"
)

// fromDebezium takes apart what Debezium's outbox event router makes of a row of millrace_outbox.
type fromDebezium struct{ kafka.DefaultMarshaler }

func (f fromDebezium) Unmarshal(record *sarama.ConsumerMessage) (*message.Message, error) {
	msg, err := f.DefaultMarshaler.Unmarshal(record)
	if err != nil {
		return nil, err
	}
	stored := msg.Metadata.Get("metadata")
	msg.Metadata = message.Metadata{}
	if stored != "" {
		err = json.Unmarshal([]byte(stored), &msg.Metadata)
	}
	return msg, err
}

// A shop stores messages, of which some are there before Debezium is. Kafka Connect and PostgreSQL are killed while Debezium reads.
// What was committed has one effect, as it was published, and in the order of its key.
func TestClusterDebezium(t *testing.T) {
	s := newShop(t)
	billing := testdb.On(t, "postgres")
	billing.Do(t, `CREATE TABLE effects (id BIGSERIAL, uuid VARCHAR(36), payload BYTEA, metadata TEXT)`)
	store := rig.NewStore(t, billing.DB, inbox.Config{})
	subscriber, err := kafka.NewSubscriber(kafka.SubscriberConfig{
		Brokers: s.brokers, ConsumerGroup: "billing", Unmarshaler: fromDebezium{}, OverwriteSaramaConfig: safeConsumer(),
	}, watermill.NopLogger{})
	require.NoError(t, err)
	router := rig.NewRouter(t)
	millrace.Inbox{Store: store}.AddTo(router)
	router.AddConsumerHandler("billing", s.topic, subscriber, record)
	rig.Run(t, router)
	effects := func() (n int) {
		require.NoError(t, billing.GetContext(t.Context(), &n, `SELECT COUNT(*) FROM effects`))
		return n
	}

	for range 10 {
		require.NoError(t, s.sell(t.Context()))
	}
	require.NoError(t, outbox.InTx(t.Context(), s.db.DB, func(ctx context.Context, _ *sqlx.Tx) error {
		bare := message.NewMessage(watermill.NewUUID(), nil)
		bare.Metadata = nil
		bare.SetContext(ctx)
		return s.out.Publish(s.topic, bare) //nolint:contextcheck // the message carries it
	}))
	connect := s.capture()
	stop := s.sellAllTheTime()
	more := func(what string) {
		t.Helper()
		want := effects() + 50
		require.Eventually(t, func() bool { return effects() > want }, 4*rig.Patience, 20*time.Millisecond, what)
	}
	more("effects")
	connect.Kill()
	connect.Start()
	more("effects after Kafka Connect was killed")
	s.postgres.Kill()
	s.postgres.Start()
	more("effects after PostgreSQL was killed")
	connect.Kill()
	s.postgres.Kill()
	s.postgres.Start()
	connect.Start()
	more("effects after both were killed")
	stop()

	var stored []row
	require.NoError(t, s.db.SelectContext(t.Context(), &stored, `SELECT uuid, COALESCE(payload, '') AS payload, COALESCE(metadata, '{}') AS metadata
		FROM millrace_outbox ORDER BY id`))
	require.Eventually(t, func() bool { return effects() >= len(stored) }, 4*rig.Patience, 20*time.Millisecond, "all has its effect")
	var done []row
	require.NoError(t, billing.SelectContext(t.Context(), &done, `SELECT uuid, COALESCE(payload, '') AS payload, metadata FROM effects ORDER BY id`))
	was, times, last := make(map[string]row), make(map[string]int), make(map[string]int)
	for _, r := range stored {
		was[r.UUID] = r
	}
	for _, r := range done {
		times[r.UUID]++
		assert.True(t, bytes.Equal(was[r.UUID].Payload, r.Payload), "payload of %s", r.UUID)
		assert.JSONEq(t, was[r.UUID].Metadata, r.Metadata, "metadata of %s", r.UUID)
		if n, key := r.number(t); key != "" {
			assert.Greater(t, n, last[key], "message %d of %s came late", n, key)
			last[key] = n
		}
	}
	for uuid := range was {
		assert.Equal(t, 1, times[uuid], "effects of %s", uuid)
	}
	assert.Equal(t, len(stored), len(done), "effects") //nolint:testifylint // Len would print them
	t.Logf("%d messages, %d records in Kafka, %d effects", len(stored), s.inKafka(s.topic), len(done))
}

// The relay and Debezium bring the same messages from the same PostgreSQL to the same Kafka, one after the other.
func TestClusterDebeziumBesideTheRelay(t *testing.T) {
	const n = 20_000
	s := newShop(t)
	s.capture()
	require.NoError(t, s.sell(t.Context()))
	require.Eventually(t, func() bool { return s.inKafka(s.topic) == 1 }, 4*rig.Patience, 20*time.Millisecond, "Debezium is there")
	began := time.Now()
	s.sellMany(n)
	stored := time.Since(began)
	require.Eventually(t, func() bool { return s.inKafka(s.topic) >= n+1 }, 4*rig.Patience, 10*time.Millisecond, "Debezium sends all")
	t.Logf("Debezium: %d messages in %v (they were stored in %v), %.0f a second", n, time.Since(began), stored, n/time.Since(began).Seconds())

	other := *s
	other.open()
	other.topic = createTopic(t, s.brokers, &sarama.TopicDetail{NumPartitions: 3, ReplicationFactor: 1})
	relay, err := outbox.NewRelay(other.db.DB, kafkaPublisher(t, s.brokers, safeProducer()), outbox.RelayConfig{})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	require.NoError(t, other.sell(t.Context()))
	require.Eventually(t, func() bool { return s.inKafka(other.topic) == 1 }, rig.Patience, 20*time.Millisecond, "the relay is there")
	began = time.Now()
	other.sellMany(n)
	stored = time.Since(began)
	require.Eventually(t, func() bool { return s.inKafka(other.topic) >= n+1 }, 4*rig.Patience, 10*time.Millisecond, "the relay sends all")
	t.Logf("the relay: %d messages in %v (they were stored in %v), %.0f a second", n, time.Since(began), stored, n/time.Since(began).Seconds())
	cancel()
	require.NoError(t, <-ended)
}

// shop is a service with an outbox, whose PostgreSQL is its own.
type shop struct {
	*testing.T
	brokers  []string
	topic    string
	postgres *servers.Server
	db       *testdb.DB
	out      *outbox.Publisher
	sold     int
}

func newShop(t *testing.T) *shop {
	t.Helper()
	needsCluster(t)
	s := &shop{T: t, brokers: []string{servers.Kafka(t, 1)[0].Addr()}, postgres: servers.Postgres(t, "wal_level=logical")}
	s.topic = createTopic(t, s.brokers, &sarama.TopicDetail{NumPartitions: 3, ReplicationFactor: 1})
	s.open()
	return s
}

// open gives the shop a fresh database.
func (s *shop) open() {
	s.Helper()
	s.db = testdb.At(s, "postgres", s.postgres.DSN())
	s.out = rig.NewOutbox(s, s.db.DB, outbox.Config{OrderKey: outbox.ByMetadata("key")})
	require.NoError(s, s.out.Migrate(s.Context()))
}

// capture starts Kafka Connect with the connector that docs/outbox.md shows, on the shop's database.
func (s *shop) capture() *servers.Server {
	s.Helper()
	documented, err := os.ReadFile("testdata/debezium.properties")
	require.NoError(s, err)
	at, err := url.Parse(s.db.DSN)
	require.NoError(s, err)
	return servers.KafkaConnect(s, s.brokers, string(documented)+
		fmt.Sprintf("database.port=%s\ndatabase.dbname=%s\n", at.Port(), at.Path[1:]))
}

// sell stores one message.
func (s *shop) sell(ctx context.Context) error {
	return outbox.InTx(ctx, s.db.DB, func(ctx context.Context, _ *sqlx.Tx) error { return s.publish(ctx, 1) })
}

func (s *shop) publish(ctx context.Context, n int) error {
	msgs := make([]*message.Message, n)
	for i := range msgs {
		s.sold++
		msgs[i] = message.NewMessage(watermill.NewUUID(), binary(s.sold))
		msgs[i].Metadata = message.Metadata{"number": strconv.Itoa(s.sold), "key": fmt.Sprintf("order-%d", s.sold%100), "note": `Grüße, "世界" & 🌍 <\>`}
		msgs[i].SetContext(ctx)
	}
	return s.out.Publish(s.topic, msgs...) //nolint:contextcheck // the messages carry it
}

func (s *shop) sellMany(n int) {
	s.Helper()
	for range n / 100 {
		require.NoError(s, outbox.InTx(s.Context(), s.db.DB, func(ctx context.Context, _ *sqlx.Tx) error { return s.publish(ctx, 100) }))
	}
}

// sellAllTheTime stores messages until stop is called, some of which fail. What was committed is in the table. The last sale is not
// interrupted: PostgreSQL might commit it after a look at the table.
func (s *shop) sellAllTheTime() (stop func()) {
	var stopped atomic.Bool
	var running sync.WaitGroup
	running.Go(func() {
		for !stopped.Load() {
			_ = s.sell(s.Context()) // PostgreSQL may be down
		}
	})
	return func() {
		stopped.Store(true)
		running.Wait()
	}
}

// inKafka returns how many records a topic has.
func (s *shop) inKafka(topic string) (n int) {
	s.Helper()
	client, err := sarama.NewClient(s.brokers, safeConsumer())
	require.NoError(s, err)
	defer client.Close() //nolint:errcheck // it only asked
	for partition := range int32(3) {
		next, err := client.GetOffset(topic, partition, sarama.OffsetNewest)
		require.NoError(s, err)
		n += int(next)
	}
	return n
}

// row is a message, in the outbox or as it arrived.
type row struct {
	UUID     string `db:"uuid"`
	Payload  []byte `db:"payload"`
	Metadata string `db:"metadata"`
}

// number returns the place of a message among those of its key, if it has one.
func (r row) number(t *testing.T) (n int, key string) {
	t.Helper()
	var metadata map[string]string
	require.NoError(t, json.Unmarshal([]byte(r.Metadata), &metadata))
	if metadata["number"] == "" {
		return 0, ""
	}
	n, err := strconv.Atoi(metadata["number"])
	require.NoError(t, err)
	return n, metadata["key"]
}
