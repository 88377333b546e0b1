package bench_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub/rabbitmq"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// BenchmarkLatency is P6: from the commit to the consumer, at twenty messages a second.
func BenchmarkLatency(b *testing.B) {
	r := newRabbit(b, "classic")
	db := outboxDatabase(b)
	ways := []struct {
		name  string
		start func() func(context.Context, string) error
	}{
		{"relay", func() func(context.Context, string) error { return r.relayed(b, db, db) }},
		{"relay, told by NOTIFY", func() func(context.Context, string) error { return r.relayed(b, db, db.Open(b)) }},
		{"forwarder", func() func(context.Context, string) error { return r.forwarding(b, db, 0) }},
		{"forwarder, 50 ms poll", func() func(context.Context, string) error {
			return r.forwarding(b, db, 50*time.Millisecond)
		}},
	}
	medians, tails := series{}, series{}
	for range turns() {
		for _, way := range ways {
			r.purge(b)
			took := r.latencies(b, way.start(), pick(100, 5))
			medians.add(way.name, milliseconds(took, 0.5))
			tails.add(way.name, milliseconds(took, 0.99))
		}
	}
	p50 := func(way string) float64 { return median(medians[way]) }
	for _, way := range []string{"relay", "relay, told by NOTIFY"} {
		atMost("P6/defaults, "+way, 0.01).judge(b, medians.over(way, "forwarder"),
			"p50 %.2f ms, p99 %.2f ms; Watermill forwarder p50 %.0f ms", p50(way), median(tails[way]), p50("forwarder"))
		atMost("P6/50 ms poll, "+way, 0.2).judge(b, medians.over(way, "forwarder, 50 ms poll"),
			"forwarder polling every 50 ms p50 %.1f ms", p50("forwarder, 50 ms poll"))
	}
}

// BenchmarkHeldTransaction is P14: the same with an unrelated transaction that has written
// and stays open.
func BenchmarkHeldTransaction(b *testing.B) {
	r := newRabbit(b, "classic")
	db := outboxDatabase(b)
	tails := series{}
	for range turns() {
		for _, way := range []string{"undisturbed", "held"} {
			r.purge(b)
			release := func() {}
			if way == "held" {
				tx, err := db.BeginTxx(b.Context(), nil)
				require.NoError(b, err)
				_, err = tx.ExecContext(b.Context(), `UPDATE bench_account SET balance = 0 WHERE id = 1`)
				require.NoError(b, err)
				release = func() { require.NoError(b, tx.Rollback()) }
			}
			took := r.latencies(b, r.relayed(b, db, db), pick(600, 5)) // thirty seconds
			release()
			tails.add(way, milliseconds(took, 0.99))
		}
	}
	atMost("P14", 1.5).judge(b, tails.over("held", "undisturbed"),
		"p99 %.2f ms, undisturbed %.2f ms", median(tails["held"]), median(tails["undisturbed"]))
}

// latencies sends n messages, twenty a second, and returns how long each took from the
// commit to a consumer. The sender stops what start began.
func (r *rabbit) latencies(b *testing.B, send func(context.Context, string) error, n int) []time.Duration {
	b.Helper()
	channel := r.channel(b)
	defer channel.Close() //nolint:errcheck // nothing is lost
	deliveries, err := channel.ConsumeWithContext(b.Context(), r.queue, "", true, false, false, false, nil)
	require.NoError(b, err)
	const warmUp = 5
	took := make([]time.Duration, 0, n)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for i := range n + warmUp {
		<-tick.C
		require.NoError(b, send(b.Context(), watermill.NewUUID()))
		committed := time.Now()
		<-deliveries
		if i >= warmUp {
			took = append(took, time.Since(committed))
		}
	}
	require.NoError(b, send(b.Context(), "")) // the end
	return took
}

func milliseconds(took []time.Duration, quantile float64) float64 {
	sorted := slices.Sorted(slices.Values(took))
	at := int(quantile * float64(len(sorted)-1))
	return float64(sorted[at]) / float64(time.Millisecond)
}

// relayed starts a relay and returns how to store a message for it, on a pool that may be
// another than the relay's; an empty UUID stops it.
func (r *rabbit) relayed(b *testing.B, db, stored *testdb.DB) func(context.Context, string) error {
	b.Helper()
	publisher, err := rabbitmq.NewPublisher(r.config(), rabbitmq.PublisherConfig{})
	require.NoError(b, err)
	relay, err := outbox.NewRelay(db.DB, publisher, outbox.RelayConfig{})
	require.NoError(b, err)
	out := rig.NewOutbox(b, stored.DB, outbox.Config{})
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	return func(ctx context.Context, uuid string) error {
		if uuid == "" {
			cancel()
			require.NoError(b, <-ended)
			return publisher.Close()
		}
		return outbox.InTx(ctx, stored.DB, func(ctx context.Context, tx *sqlx.Tx) error {
			if _, err := tx.ExecContext(ctx, update, 7); err != nil {
				return err
			}
			return out.Publish(r.queue, newMessage(ctx, uuid))
		})
	}
}

func newMessage(ctx context.Context, uuid string) *message.Message {
	m := message.NewMessage(uuid, body)
	m.Metadata.Set("name", "OrderPlaced")
	m.SetContext(ctx)
	return m
}

// forwarding is the same with Watermill's forwarder.
func (r *rabbit) forwarding(b *testing.B, db *testdb.DB, poll time.Duration) func(context.Context, string) error {
	b.Helper()
	topic := "f" + watermill.NewShortUUID()
	_, subscriber := forwarded(b, db, wsql.SubscriberConfig{ConsumerGroup: "forwarder", PollInterval: poll})
	require.NoError(b, subscriber.SubscribeInitialize(topic))
	config := r.config()
	config.Publish.ConfirmDelivery = true
	config.Publish.ChannelPoolSize = 10
	publisher, err := amqp.NewPublisher(config, watermill.NopLogger{})
	require.NoError(b, err)
	f, err := forwarder.NewForwarder(subscriber, publisher, watermill.NopLogger{}, forwarder.Config{ForwarderTopic: topic})
	require.NoError(b, err)
	ended := make(chan error, 1)
	go func() { ended <- f.Run(b.Context()) }()
	<-f.Running()
	return func(ctx context.Context, uuid string) error {
		if uuid == "" {
			require.NoError(b, f.Close())
			require.NoError(b, <-ended)
			return publisher.Close()
		}
		tx, err := db.BeginTxx(ctx, nil)
		require.NoError(b, err)
		_, err = tx.ExecContext(ctx, update, 7)
		require.NoError(b, err)
		require.NoError(b, envelopesIn(b, tx, topic).Publish(r.queue, newMessage(ctx, uuid)))
		return tx.Commit()
	}
}

// envelopesIn is the forwarder's publisher in a transaction: there is one for each.
func envelopesIn(b *testing.B, tx *sqlx.Tx, topic string) *forwarder.Publisher {
	b.Helper()
	publisher, err := wsql.NewPublisher(tx, wsql.PublisherConfig{SchemaAdapter: wsql.DefaultPostgreSQLSchema{}}, watermill.NopLogger{})
	require.NoError(b, err)
	return forwarder.NewPublisher(publisher, forwarder.PublisherConfig{ForwarderTopic: topic})
}
