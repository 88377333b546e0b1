package bench_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub/rabbitmq"
	"github.com/millrace-go/millrace/tests/testdb"
)

// hotKey is the order key that has more messages than go out.
const hotKey = "hot"

// apart counts the messages of all other keys, and those of the hot one.
type apart struct {
	message.Publisher
	others, hot atomic.Int64
	enough      int64
	done        chan struct{}
}

func (a *apart) Publish(topic string, msgs ...*message.Message) error {
	if err := a.Publisher.Publish(topic, msgs...); err != nil {
		return err
	}
	n := int64(0)
	for _, m := range msgs {
		if m.Metadata.Get("key") == hotKey {
			a.hot.Add(1)
		} else {
			n++
		}
	}
	if now := a.others.Add(n); now >= a.enough && now-n < a.enough {
		close(a.done)
	}
	return nil
}

// keyed puts n messages into the outbox, of one key or of 292 others.
func keyed(b *testing.B, db *testdb.DB, topic string, n int, hot bool) {
	b.Helper()
	key, hash := "'"+hotKey+"'", "4711"
	if !hot {
		key, hash = map[string]string{
			"postgres": "'k' || i % 292", "mysql": "CONCAT('k', i % 292)",
		}[db.Dialect], "(i % 292) * 257000771000"
	}
	uuid := map[string]string{"postgres": "gen_random_uuid()::TEXT", "mysql": "UUID()"}[db.Dialect]
	from := map[string]string{
		"postgres": fmt.Sprintf("generate_series(1, %d) i", n), "mysql": fmt.Sprintf("(SELECT seq AS i FROM seq_1_to_%d) numbers", n),
	}[db.Dialect]
	metadata := map[string]string{"postgres": `'{"key":"' || ` + key + ` || '"}'`, "mysql": `CONCAT('{"key":"', ` + key + `, '"}')`}[db.Dialect]
	db.Do(b, fmt.Sprintf(`
		INSERT INTO millrace_outbox (key_hash, order_key, topic, uuid, metadata, payload, created_at)
		SELECT %s, %s, '%s', %s, %s, '%s', 1 FROM %s`, hash, key, topic, uuid, metadata, body, from))
}

// BenchmarkHotKey is P15: how fast the messages of 292 other keys flow beside a key that has a million,
// of which none fails.
func BenchmarkHotKey(b *testing.B) {
	testdb.Each(b, func(b *testing.B, db *testdb.DB) {
		if db.Dialect == "sqlite" {
			b.Skip("one writer at a time")
		}
		r := newRabbit(b, "classic")
		require.NoError(b, newStore(b, db).Migrate(b.Context()))
		publisher, err := rabbitmq.NewPublisher(r.config(), rabbitmq.PublisherConfig{})
		require.NoError(b, err)
		defer publisher.Close() //nolint:errcheck // at the end of all
		n := pick(90_000, 300)
		rates := series{}
		var behind, hot []float64
		for range pick(7, 1) {
			for _, way := range []string{"alone", "beside"} {
				r.purge(b)
				db.Do(b, map[string]string{"postgres": "TRUNCATE millrace_outbox", "mysql": "TRUNCATE TABLE millrace_outbox"}[db.Dialect])
				if way == "beside" {
					keyed(b, db, r.queue, pick(1_000_000, 2_000), true)
				}
				first, rate, perSecond := flow(b, db, r.queue, publisher, n)
				rates.add(way, rate)
				b.Logf("%s: %.0f/s", way, rate)
				if way == "beside" {
					behind, hot = append(behind, first.Seconds()), append(hot, perSecond)
				}
			}
		}
		atLeast("P15/"+db.Dialect, 0.9).judge(b, rates.over("beside", "alone"),
			"others %.0f/s beside the hot key, %.0f/s without it; hot key %.0f/s; others stored before the relay began waited for %.1f s",
			median(rates["beside"]), median(rates["alone"]), median(hot), median(behind))
	}, testdb.Pool(pool))
}

// flow runs a relay. It tells how long the first of the other keys' messages waited, if they were
// stored when the relay began, and how fast n of them go out that are stored then.
func flow(b *testing.B, db *testdb.DB, topic string, to message.Publisher, n int) (first time.Duration, rate, hot float64) {
	b.Helper()
	keyed(b, db, topic, 1, false)
	run := func(a *apart, then func()) time.Duration {
		relay, err := outbox.NewRelay(db.DB, a, outbox.RelayConfig{})
		require.NoError(b, err)
		ctx, cancel := context.WithCancel(b.Context())
		ended := make(chan error, 1)
		began := time.Now()
		go func() { ended <- relay.Run(ctx) }()
		if then != nil {
			then()
			began = time.Now()
			relay.Wake()
		}
		<-a.done
		took := time.Since(began)
		cancel()
		require.NoError(b, <-ended)
		return took
	}
	one := &apart{Publisher: to, enough: 1, done: make(chan struct{})}
	first = run(one, nil)
	all := &apart{Publisher: to, enough: int64(n), done: make(chan struct{})}
	var before int64
	took := run(all, func() {
		keyed(b, db, topic, n, false)
		before = all.hot.Load()
	})
	return first, float64(n) / took.Seconds(), float64(all.hot.Load()-before) / took.Seconds()
}
