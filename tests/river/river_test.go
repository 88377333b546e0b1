package river_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

const (
	pool    = 20 // connections, on each side
	topic   = "payments"
	payload = `{"account":4711,"amount":"12.50","currency":"EUR","reference":"invoice 2024-0815"}`
)

// BenchmarkRiver is P7: how fast the stored messages of a StoreFirst queue are worked off by a
// handler that does nothing, against as many jobs of River by a worker that does nothing. Both
// are done when nothing is left in their tables that is not completed.
func BenchmarkRiver(b *testing.B) {
	short := flag.Lookup("test.benchtime").Value.String() == "1x"
	n, turns := 2_000, 3
	if short {
		n, turns = 300, 1
	}
	db := testdb.On(b, "postgres", testdb.Pool(pool))
	r := newRiver(b, db)
	store := rig.NewStore(b, db.DB, inbox.Config{})
	require.NoError(b, store.Migrate(b.Context()))
	for _, hands := range []int{10, 100} {
		var ratios, ours, theirs []float64
		for range turns {
			theirs = append(theirs, r.rate(b, db, n, hands))
			ours = append(ours, queueRate(b, db, store, n, hands))
			ratios = append(ratios, ours[len(ours)-1]/theirs[len(theirs)-1])
		}
		ratio, verdict := median(ratios), "FAIL"
		if ratio >= 0.8 {
			verdict = "PASS"
		}
		fmt.Printf("P7/%d-at-once ratio=%.2f goal≥0.8, wanted 1.2 %s (StoreFirst %.0f/s, River %.0f/s; turns %.2f)\n",
			hands, ratio, verdict, median(ours), median(theirs), ratios)
	}
	if short {
		fmt.Println("short run, means nothing")
	}
	b.ReportMetric(0, "ns/op") // hides it: the time of the whole benchmark says nothing
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

type job struct {
	Account   int    `json:"account"`
	Amount    string `json:"amount"`
	Currency  string `json:"currency"`
	Reference string `json:"reference"`
}

// Kind is River's name for the type of job.
func (job) Kind() string { return topic }

// worker does nothing but count.
type worker struct {
	river.WorkerDefaults[job]
	counter
}

// Work counts.
func (w *worker) Work(context.Context, *river.Job[job]) error {
	w.one()
	return nil
}

type counter struct {
	left atomic.Int64
	done chan struct{}
}

func (c *counter) expect(n int) {
	c.done = make(chan struct{})
	c.left.Store(int64(n))
}

func (c *counter) one() {
	if c.left.Add(-1) == 0 {
		close(c.done)
	}
}

type rival struct{ pool *pgxpool.Pool }

func newRiver(b *testing.B, db *testdb.DB) *rival {
	b.Helper()
	config, err := pgxpool.ParseConfig(db.DSN)
	require.NoError(b, err)
	config.MaxConns = pool
	p, err := pgxpool.NewWithConfig(b.Context(), config)
	require.NoError(b, err)
	b.Cleanup(p.Close)
	migrator, err := rivermigrate.New(riverpgxv5.New(p), nil)
	require.NoError(b, err)
	_, err = migrator.Migrate(b.Context(), rivermigrate.DirectionUp, nil)
	require.NoError(b, err)
	return &rival{p}
}

// rate works off n jobs, at most hands at once, with the pauses between fetches that River's
// own benchmark sets, its command river bench: the defaults fetch ten times a second at most.
func (r *rival) rate(b *testing.B, db *testdb.DB, n, hands int) (perSecond float64) {
	b.Helper()
	w := &worker{}
	w.expect(n)
	workers := river.NewWorkers()
	river.AddWorker(workers, w)
	client, err := river.NewClient(riverpgxv5.New(r.pool), &river.Config{
		Workers: workers, Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: hands}},
		FetchCooldown: 2 * time.Millisecond, FetchPollInterval: 20 * time.Millisecond,
	})
	require.NoError(b, err)
	run(b, db, `TRUNCATE river_job`)
	jobs := make([]river.InsertManyParams, n)
	for i := range jobs {
		jobs[i].Args = job{4711, "12.50", "EUR", "invoice 2024-0815"}
	}
	_, err = client.InsertManyFast(b.Context(), jobs)
	require.NoError(b, err)
	run(b, db, `VACUUM ANALYZE river_job`, `CHECKPOINT`)
	began := time.Now()
	require.NoError(b, client.Start(b.Context()))
	<-w.done
	awaitNone(b, db, `SELECT EXISTS (SELECT 1 FROM river_job WHERE state IN ('available', 'running'))`)
	took := time.Since(began)
	require.NoError(b, client.Stop(b.Context()))
	return float64(n) / took.Seconds()
}

// queueRate works off n stored messages, at most hands at once.
func queueRate(b *testing.B, db *testdb.DB, store *inbox.Store, n, hands int) (perSecond float64) {
	b.Helper()
	var count counter
	count.expect(n)
	sub, err := pubsub.Durable{
		Store: store, Consumer: "billing", Mode: pubsub.StoreFirst, Concurrency: hands,
	}.Decorate(nothing{})
	require.NoError(b, err)
	router := rig.NewRouter(b)
	router.AddConsumerHandler("billing", topic, sub, func(*message.Message) error {
		count.one()
		return nil
	})
	storeMessages(b, db, store, n)
	ended := make(chan error, 1)
	began := time.Now()
	go func() { ended <- router.Run(context.WithoutCancel(b.Context())) }()
	<-count.done
	awaitNone(b, db, `SELECT EXISTS (SELECT 1 FROM millrace_messages)`)
	took := time.Since(began)
	require.NoError(b, errors.Join(router.Close(), <-ended))
	return float64(n) / took.Seconds()
}

// storeMessages fills the table with n messages as StoreFirst stores them.
func storeMessages(b *testing.B, db *testdb.DB, store *inbox.Store, n int) {
	b.Helper()
	queue, err := store.Queue(inbox.QueueConfig{Consumer: "billing"})
	require.NoError(b, err)
	run(b, db, `TRUNCATE millrace_claims, millrace_messages`)
	require.NoError(b, queue.Put(b.Context(), topic, message.NewMessage(watermill.NewUUID(), []byte(payload))))
	db.Do(b, `
		INSERT INTO millrace_messages (consumer, message_id, status, topic, event_type, event_version, uuid, metadata, payload,
			payload_hash, reason, received_at, due_at)
		SELECT m.consumer, '\x01'::BYTEA || uuid_send(u.uuid), m.status, m.topic, m.event_type, m.event_version,
			u.uuid::TEXT::BYTEA, m.metadata, m.payload, m.payload_hash, m.reason, m.received_at, m.due_at
		FROM millrace_messages m, (SELECT gen_random_uuid() AS uuid FROM generate_series(2, $1)) u`, n)
	run(b, db, `VACUUM ANALYZE millrace_messages`, `CHECKPOINT`)
}

// awaitNone waits until query says that there are no rows.
func awaitNone(b *testing.B, db *testdb.DB, query string) {
	b.Helper()
	for some := true; some; {
		require.NoError(b, db.GetContext(b.Context(), &some, query))
	}
}

func run(b *testing.B, db *testdb.DB, statements ...string) {
	b.Helper()
	for _, s := range statements {
		db.Do(b, s)
	}
}

// nothing is a subscriber whose source is silent.
type nothing struct{}

// Subscribe delivers nothing until ctx ends.
func (nothing) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	out := make(chan *message.Message)
	context.AfterFunc(ctx, func() { close(out) })
	return out, nil
}

// Close does nothing.
func (nothing) Close() error { return nil }
