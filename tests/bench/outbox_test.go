package bench_test

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub/rabbitmq"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// BenchmarkOutbox is P12: an UPDATE and a message in one transaction, against watermill-sql's
// publisher in the same place.
func BenchmarkOutbox(b *testing.B) { nearAndFar(b, published) }

func published(b *testing.B, db *testdb.DB, at place) {
	unvacuumed(b, db)
	out := rig.NewOutbox(b, db.DB, outbox.Config{})
	const topic = "orders"
	stored, _ := forwarded(b, db, wsql.SubscriberConfig{ConsumerGroup: "none"})
	require.NoError(b, stored.Publish(topic, message.NewMessage(watermill.NewUUID(), body))) // makes the table
	run(b, db, `ALTER TABLE watermill_orders SET (autovacuum_enabled = off)`)
	ways := []struct {
		name    string
		publish func(ctx context.Context, tx *sqlx.Tx) error
	}{
		{"outbox", func(ctx context.Context, _ *sqlx.Tx) error {
			return out.Publish(topic, newMessage(ctx, watermill.NewUUID()))
		}},
		{"watermill-sql", func(ctx context.Context, tx *sqlx.Tx) error {
			publisher, err := wsql.NewPublisher(tx, wsql.PublisherConfig{SchemaAdapter: wsql.DefaultPostgreSQLSchema{}}, watermill.NopLogger{})
			if err != nil {
				return err
			}
			return publisher.Publish(topic, newMessage(ctx, watermill.NewUUID()))
		}},
		{"least", func(ctx context.Context, tx *sqlx.Tx) error {
			msg := newMessage(ctx, watermill.NewUUID())
			metadata, err := json.Marshal(msg.Metadata)
			if err != nil {
				return err
			}
			_, err = tx.ExecContext(ctx, leastInsert, -rand.Int64N(1<<62), topic, nil, msg.UUID, nil, string(metadata), []byte(msg.Payload), nil)
			return err
		}},
	}
	rates := series{}
	for range at.turns() {
		for _, way := range ways {
			run(b, db, `TRUNCATE millrace_outbox, watermill_orders`)
			settleDown(b, db)
			rates.add(way.name, transactions(b, db, way.publish))
		}
	}
	atLeast(at.goal("P12"), 1).judge(b, rates.over("outbox", "watermill-sql"), "outbox %.0f/s, watermill-sql %.0f/s",
		median(rates["outbox"]), median(rates["watermill-sql"]))
	atLeast(at.goal("P12/least"), 1).judge(b, rates.over("least", "watermill-sql"), "%.0f/s", median(rates["least"]))
}

// leastInsert is the least that stores a message for the relay: the statement, without checks, and nobody is woken.
const leastInsert = `
	INSERT INTO millrace_outbox (key_hash, topic, order_key, uuid, event_type, metadata, payload, cause, created_at)
	VALUES ($1, $2, $3, $4, $5, $6, $7, $8, (EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::bigint)`

// transactions commits as many as it can, sixteen at once, and returns how many a second.
func transactions(b *testing.B, db *testdb.DB, publish func(context.Context, *sqlx.Tx) error) float64 {
	b.Helper()
	began := time.Now()
	n := parallel(b, func() (done bool, err error) {
		if time.Since(began) >= phase() {
			return true, nil
		}
		return false, outbox.InTx(b.Context(), db.DB, func(ctx context.Context, tx *sqlx.Tx) error {
			if _, err := tx.ExecContext(ctx, update, 1+int(account.Add(1))%accounts); err != nil {
				return err
			}
			return publish(ctx, tx)
		})
	})
	return float64(n) / time.Since(began).Seconds()
}

var account atomic.Int64

// blockedKey is the order key of messages that nobody takes.
const blockedKey = "blocked"

// stubborn refuses the messages of one key.
type stubborn struct{ message.Publisher }

var errBlocked = errors.New("this message is not taken")

func (s stubborn) Publish(topic string, msgs ...*message.Message) error {
	for _, m := range msgs {
		if m.Metadata.Get("key") == blockedKey {
			return errBlocked
		}
	}
	return s.Publisher.Publish(topic, msgs...)
}

// BenchmarkBlockedKey is P10: how fast other messages flow while one in ten belongs to a key
// whose first message fails.
func BenchmarkBlockedKey(b *testing.B) {
	r := newRabbit(b, "classic")
	db := outboxDatabase(b)
	publisher, err := rabbitmq.NewPublisher(r.config(), rabbitmq.PublisherConfig{})
	require.NoError(b, err)
	defer publisher.Close() //nolint:errcheck // at the end of all
	n := pick(30_000, 500)
	rates := series{}
	for range pick(5, 1) {
		for _, way := range []string{"unblocked", "blocked"} {
			r.purge(b)
			run(b, db, `TRUNCATE millrace_outbox`)
			stock(b, db, r.queue, n)
			if way == "blocked" {
				run(b, db, `UPDATE millrace_outbox SET order_key = '`+blockedKey+`', key_hash = 4711,
					metadata = '{"key":"`+blockedKey+`"}' WHERE id % 10 = 0`, `VACUUM ANALYZE millrace_outbox`, `CHECKPOINT`)
			}
			flows := n
			if way == "blocked" {
				require.NoError(b, db.GetContext(b.Context(), &flows, `SELECT COUNT(*) FROM millrace_outbox WHERE order_key IS NULL`))
			}
			rates.add(way, drain(b, db, stubborn{publisher}, flows, outbox.RelayConfig{}))
		}
	}
	atLeast("P10", 0.95).judge(b, rates.over("blocked", "unblocked"), "others %.0f/s beside a blocked key, %.0f/s without one",
		median(rates["blocked"]), median(rates["unblocked"]))
}

// sink takes everything, and looks at the memory now and then.
type sink struct {
	taken atomic.Int64
	every int64
	peak  [2]atomic.Uint64 // of the first half, and of the second
	half  int64
}

func (s *sink) Publish(_ string, msgs ...*message.Message) error {
	n := s.taken.Add(int64(len(msgs)))
	if n/s.every != (n-int64(len(msgs)))/s.every {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		p := &s.peak[min(n/s.half, 1)]
		p.Store(max(p.Load(), m.HeapAlloc))
	}
	return nil
}

func (s *sink) Close() error { return nil }

// BenchmarkRelayMemory is P11: what is on the heap while a million messages are relayed.
func BenchmarkRelayMemory(b *testing.B) {
	db := outboxDatabase(b)
	n := pick(1_000_000, 5_000)
	stock(b, db, "orders", n)
	s := &sink{every: int64(n / 50), half: int64(n / 2)}
	rate := drain(b, db, s, n, outbox.RelayConfig{})
	first, second := float64(s.peak[0].Load()), float64(s.peak[1].Load())
	atMost("P11", 1.1).judge(b, []float64{second / first},
		"heap after a collection: %.1f MB at most in the first half, %.1f MB in the second; %.0f/s to a publisher that does nothing",
		first/1e6, second/1e6, rate)
}
