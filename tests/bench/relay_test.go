package bench_test

import (
	"context"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub/rabbitmq"
	"github.com/millrace-go/millrace/tests/testdb"
)

// body is what every relayed message carries.
var body = []byte(`{"order_id":"6f6c0a0e-5d3c-4d0b-9d3a-4c8a2d9a1f7e","customer":4711,"total":1999,"currency":"EUR","lines":3}`)

// BenchmarkRelay is P4 and P5: from a full outbox to RabbitMQ, persistent and confirmed.
func BenchmarkRelay(b *testing.B) {
	for _, kind := range []struct {
		queue     string
		ofLimit   float64
		forwarded float64
	}{{"classic", 0.85, 10}, {"quorum", 0.75, 15}} {
		b.Run(kind.queue, func(b *testing.B) {
			r := newRabbit(b, kind.queue)
			db := outboxDatabase(b)
			ways := []struct {
				name string
				rate func() float64
			}{
				{"bare", func() float64 { return r.bare(b, pick(30_000, 500)) }},
				{"relay", func() float64 { return r.relay(b, db, pick(30_000, 500)) }},
				{"forwarder", func() float64 { return r.forwarder(b, db, pick(3_000, 100)) }},
			}
			rates := series{}
			for range pick(5, 1) {
				for _, way := range ways {
					r.purge(b)
					rates.add(way.name, way.rate())
				}
			}
			per := func(way string) float64 { return median(rates[way]) }
			atLeast("P4/"+kind.queue, kind.ofLimit).judge(b, rates.over("relay", "bare"),
				"relay %.0f/s, bare client with a confirm window of 500 %.0f/s", per("relay"), per("bare"))
			atLeast("P5/"+kind.queue, kind.forwarded).judge(b, rates.over("relay", "forwarder"),
				"Watermill forwarder with confirms, channel pool 10 %.0f/s", per("forwarder"))
		})
	}
}

// rabbit is a queue of a RabbitMQ, and a connection of the benchmark's own.
type rabbit struct {
	uri       string
	queue     string
	arguments amqp091.Table // of the queue
	conn      *amqp091.Connection
}

func newRabbit(b *testing.B, kind string) *rabbit {
	b.Helper()
	uri := os.Getenv("MILLRACE_TEST_RABBITMQ")
	if uri == "" {
		testdb.Missing(b, "RabbitMQ", `set MILLRACE_TEST_RABBITMQ, or: eval "$(tests/services.sh)"`)
	}
	conn, err := amqp091.Dial(uri)
	require.NoError(b, err)
	b.Cleanup(func() { _ = conn.Close() }) // at the end of all
	r := &rabbit{uri: uri, queue: "bench_" + watermill.NewShortUUID(), conn: conn}
	r.arguments = rabbitmq.NewQueueConfig(uri, rabbitmq.Queues{Quorum: kind == "quorum"}).Queue.Arguments
	channel := r.channel(b)
	_, err = channel.QueueDeclare(r.queue, true, false, false, false, r.arguments)
	require.NoError(b, err)
	b.Cleanup(func() {
		_, err := r.channel(b).QueueDelete(r.queue, false, false, false)
		require.NoError(b, err)
	})
	return r
}

func (r *rabbit) channel(b *testing.B) *amqp091.Channel {
	b.Helper()
	channel, err := r.conn.Channel()
	require.NoError(b, err)
	return channel
}

func (r *rabbit) purge(b *testing.B) {
	b.Helper()
	channel := r.channel(b)
	defer channel.Close() //nolint:errcheck // nothing is lost
	_, err := channel.QueuePurge(r.queue, false)
	require.NoError(b, err)
}

// bare publishes with the client alone, 500 unconfirmed at most: the limit.
func (r *rabbit) bare(b *testing.B, n int) (perSecond float64) {
	b.Helper()
	const window = 500
	channel := r.channel(b)
	defer channel.Close() //nolint:errcheck // nothing is lost
	require.NoError(b, channel.Confirm(false))
	confirms := channel.NotifyPublish(make(chan amqp091.Confirmation, window))
	began := time.Now()
	for i := range n {
		if i >= window {
			require.True(b, (<-confirms).Ack)
		}
		require.NoError(b, channel.PublishWithContext(b.Context(), "", r.queue, true, false, amqp091.Publishing{
			DeliveryMode: amqp091.Persistent, Body: body, MessageId: strconv.Itoa(i),
			Headers: amqp091.Table{"_watermill_message_uuid": watermill.NewUUID(), "name": "OrderPlaced"},
		}))
	}
	for range min(n, window) {
		require.True(b, (<-confirms).Ack)
	}
	return float64(n) / time.Since(began).Seconds()
}

func (r *rabbit) config() amqp.Config {
	config := amqp.NewDurableQueueConfig(r.uri)
	config.Marshaler = rabbitmq.Marshaler{}
	config.Queue.Arguments = r.arguments
	return config
}

// relay empties an outbox of n messages.
func (r *rabbit) relay(b *testing.B, db *testdb.DB, n int) (perSecond float64) {
	b.Helper()
	stock(b, db, r.queue, n)
	publisher, err := rabbitmq.NewPublisher(r.config(), rabbitmq.PublisherConfig{})
	require.NoError(b, err)
	defer publisher.Close() //nolint:errcheck // at the end of all
	return drain(b, db, publisher, n, outbox.RelayConfig{})
}

// stock puts n messages without an order into the outbox.
func stock(b *testing.B, db *testdb.DB, topic string, n int) {
	b.Helper()
	db.Do(b, `
		INSERT INTO millrace_outbox (key_hash, topic, uuid, event_type, metadata, payload, created_at)
		SELECT (random() * 1000000000000)::BIGINT, $1, gen_random_uuid()::TEXT, 'OrderPlaced', '{"name":"OrderPlaced"}', $2,
			(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::BIGINT
		FROM generate_series(1, $3)`, topic, body, n)
	run(b, db, `VACUUM ANALYZE millrace_outbox`, `CHECKPOINT`)
}

// drain runs a relay until n messages were confirmed and written off.
func drain(b *testing.B, db *testdb.DB, to message.Publisher, n int, config outbox.RelayConfig) (perSecond float64) {
	b.Helper()
	counted := &counter{Publisher: to, enough: int64(n), done: make(chan struct{})}
	relay, err := outbox.NewRelay(db.DB, counted, config)
	require.NoError(b, err)
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	began := time.Now()
	go func() { ended <- relay.Run(ctx) }()
	<-counted.done
	took := time.Since(began)
	cancel()
	require.NoError(b, <-ended)
	return float64(n) / took.Seconds()
}

// counter tells when enough was published.
type counter struct {
	message.Publisher
	count, enough int64
	done          chan struct{}
}

func (c *counter) Publish(topic string, msgs ...*message.Message) error {
	if err := c.Publisher.Publish(topic, msgs...); err != nil {
		return err
	}
	if n := atomic.AddInt64(&c.count, int64(len(msgs))); n >= c.enough && n-int64(len(msgs)) < c.enough {
		close(c.done)
	}
	return nil
}

// forwarder empties a topic of n messages by Watermill's own component.
func (r *rabbit) forwarder(b *testing.B, db *testdb.DB, n int) (perSecond float64) {
	b.Helper()
	topic := "f" + watermill.NewShortUUID()
	stored, subscriber := forwarded(b, db, wsql.SubscriberConfig{ConsumerGroup: "forwarder"})
	require.NoError(b, subscriber.SubscribeInitialize(topic))
	envelopes := forwarder.NewPublisher(stored, forwarder.PublisherConfig{ForwarderTopic: topic})
	for sent := 0; sent < n; {
		var msgs []*message.Message
		for ; sent < n && len(msgs) < 1000; sent++ {
			m := message.NewMessage(watermill.NewUUID(), body)
			m.Metadata.Set("name", "OrderPlaced")
			msgs = append(msgs, m)
		}
		require.NoError(b, envelopes.Publish(r.queue, msgs...))
	}
	config := r.config()
	config.Publish.ConfirmDelivery = true
	config.Publish.ChannelPoolSize = 10
	publisher, err := amqp.NewPublisher(config, watermill.NopLogger{})
	require.NoError(b, err)
	counted := &counter{Publisher: publisher, enough: int64(n), done: make(chan struct{})}
	f, err := forwarder.NewForwarder(subscriber, counted, watermill.NopLogger{}, forwarder.Config{ForwarderTopic: topic})
	require.NoError(b, err)
	ended := make(chan error, 1)
	began := time.Now()
	go func() { ended <- f.Run(b.Context()) }()
	<-counted.done
	took := time.Since(began)
	require.NoError(b, f.Close())
	require.NoError(b, <-ended)
	require.NoError(b, publisher.Close())
	return float64(n) / took.Seconds()
}

// forwarded are watermill-sql's two ends of a topic in PostgreSQL.
func forwarded(b *testing.B, db *testdb.DB, config wsql.SubscriberConfig) (*wsql.Publisher, *wsql.Subscriber) {
	b.Helper()
	publisher, err := wsql.NewPublisher(db.DB, wsql.PublisherConfig{
		SchemaAdapter: wsql.DefaultPostgreSQLSchema{}, AutoInitializeSchema: true,
	}, watermill.NopLogger{})
	require.NoError(b, err)
	config.SchemaAdapter = wsql.DefaultPostgreSQLSchema{}
	config.OffsetsAdapter = wsql.DefaultPostgreSQLOffsetsAdapter{}
	config.InitializeSchema = true
	subscriber, err := wsql.NewSubscriber(db.DB, config, watermill.NopLogger{})
	require.NoError(b, err)
	return publisher, subscriber
}

// outboxDatabase is a fresh one with Millrace's tables. Autovacuum keeps off the outbox: it
// would hit one side of a pair and not the other.
func outboxDatabase(b *testing.B) *testdb.DB {
	b.Helper()
	db := database(b)
	unvacuumed(b, db)
	return db
}

// unvacuumed keeps autovacuum off the outbox too.
func unvacuumed(b *testing.B, db *testdb.DB) {
	b.Helper()
	run(b, db, `ALTER TABLE millrace_outbox SET (autovacuum_enabled = off)`)
}
