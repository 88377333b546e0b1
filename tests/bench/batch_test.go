package bench_test

import (
	"context"
	random "crypto/rand"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/dialect"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pgxdb"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// BenchmarkBatch is P16: what is in flight in one transaction, on PostgreSQL against pgbench with the four statements
// of one message, on the others against one message in a transaction.
func BenchmarkBatch(b *testing.B) {
	nearAndFar(b, func(b *testing.B, db *testdb.DB, at place) {
		saving, err := sqlx.Open("pgxdb", db.DSN)
		require.NoError(b, err)
		saving.SetMaxOpenConns(pool)
		saving.SetMaxIdleConns(pool)
		b.Cleanup(func() { require.NoError(b, saving.Close()) })
		ways := batches(b, db, db.DB)
		ways = append(ways,
			batchWay{"pgxdb", inBatches(b, saving, 64, together).flood},
			batchWay{"pipeline", inBatches(b, saving, 64, inPipeline).flood},
			batchWay{"least", leastBatches(b, db, 64).flood},
			batchWay{"least 128", leastBatches(b, db, 128).flood},
			batchWay{"bare", func(b *testing.B, d time.Duration) float64 { return bareBatches(b, db, 64, d) }},
			batchWay{"pgbench", func(b *testing.B, d time.Duration) float64 { return pgbench(b, db, "prepared", d) }})
		rates := race(b, db, at, ways)
		per := func(way string) float64 { return median(rates[way]) }
		for _, n := range []string{"64", "128"} {
			atLeast(at.goal("P16/"+n), 5).judge(b, rates.over(n, "pgbench"), "%.0f/s, pgbench %.0f/s", per(n), per("pgbench"))
		}
		atLeast(at.goal("P16/one-by-one"), 1.8).judge(b, rates.over("one by one", "pgbench"), "%.0f/s", per("one by one"))
		atLeast(at.goal("P16/one-by-one/pipeline"), 1.8).judge(b, rates.over("pipeline", "pgbench"), "%.0f/s", per("pipeline"))
		tell(fmt.Sprintf("%s ratio=%.2f no goal (64 in flight through pgxdb, %.0f/s)",
			at.goal("P16/pgxdb"), median(rates.over("pgxdb", "pgbench")), per("pgxdb")))
		tell(fmt.Sprintf("%s ratio=%.2f no goal (pgx alone, 64 messages a transaction, %.0f/s)",
			at.goal("P16/bare"), median(rates.over("bare", "pgbench")), per("bare")))
		for _, n := range []string{"least", "least 128"} {
			tell(fmt.Sprintf("%s ratio=%.2f no goal (%.0f/s)", at.goal("P16/"+n), median(rates.over(n, "pgbench")), per(n)))
		}
		tell(fmt.Sprintf("%s ratio=%.2f no goal (64 in flight against Inbox with 64, %.0f/s)",
			at.goal("P16/inbox"), median(rates.over("64", "inbox")), per("inbox")))
	})
	for name, bound := range map[string]float64{dialect.MySQLName: 3, dialect.SQLiteName: 5} {
		b.Run(name, func(b *testing.B) {
			db := testdb.On(b, name, testdb.Pool(pool))
			require.NoError(b, newStore(b, db).Migrate(b.Context()))
			run(b, db,
				`CREATE TABLE bench_account (id INTEGER PRIMARY KEY, balance BIGINT NOT NULL)`,
				`INSERT INTO bench_account SELECT i, 0 FROM `+db.Numbers(accounts)+` `)
			rates := race(b, db, near, batches(b, db, db.DB))
			for _, way := range []string{"64", "one by one"} {
				atLeast("P16/"+name+"/"+way, bound).judge(b, rates.over(way, "inbox"), "%.0f/s, Inbox with 64 in flight %.0f/s",
					median(rates[way]), median(rates["inbox"]))
			}
		})
	}
}

type batchWay struct {
	name string
	rate func(b *testing.B, d time.Duration) float64
}

// batches are the ways that every database has.
func batches(b *testing.B, db *testdb.DB, pool *sqlx.DB) []batchWay {
	b.Helper()
	store := newStore(b, db)
	single := serveMany(b, 64, transfer, func(router *message.Router) {
		router.AddMiddleware(millrace.Inbox{Store: store}.Middleware)
		router.AddPlugin(store.Plugin())
	})
	return []batchWay{
		{"64", inBatches(b, pool, 64, together).flood},
		{"128", inBatches(b, pool, 128, together).flood},
		{"one by one", inBatches(b, pool, 64, oneByOne).flood},
		{"inbox", single.flood},
	}
}

// race measures the ways in turns.
func race(b *testing.B, db *testdb.DB, at place, ways []batchWay) series {
	b.Helper()
	rates := series{}
	for range at.turns() {
		for _, way := range ways {
			run(b, db, `DELETE FROM millrace_claims`)
			if db.Dialect == dialect.PostgresName {
				run(b, db, `TRUNCATE millrace_claims`)
				settleDown(b, db)
			}
			rates.add(way.name, way.rate(b, phase()))
		}
	}
	return rates
}

func inBatches(b *testing.B, pool *sqlx.DB, hands int, h func(ctx context.Context, n int) error) *service {
	b.Helper()
	return inBatchesOf(b, pool, hands, hands, h)
}

// inBatchesOf has at most most messages in a batch.
func inBatchesOf(b *testing.B, pool *sqlx.DB, hands, most int, h func(ctx context.Context, n int) error) *service {
	b.Helper()
	store := rig.NewStore(b, pool, inbox.Config{WithoutPlugin: true})
	b.Cleanup(func() { _ = store.Close(b.Context()) })
	batch := millrace.Batch{Inbox: millrace.Inbox{Store: store, Consumer: fmt.Sprintf("batch %d %d", hands, most)}, Max: most}
	s := serveMany(b, hands, batch.ConsumerHandler(func(ctx context.Context, msgs []*message.Message) error {
		return h(ctx, len(msgs))
	}), func(router *message.Router) { router.AddPlugin(store.Plugin()) })
	return s
}

// together changes the account of each message by one statement.
func together(ctx context.Context, n int) error {
	tx, err := inbox.Tx(ctx)
	if err != nil {
		return err
	}
	changes := change(n)
	if tx.DriverName() != "mysql" && tx.DriverName() != "sqlite" {
		_, err = tx.ExecContext(ctx, updateMany, slices.Collect(maps.Keys(changes)), slices.Collect(maps.Values(changes)))
		return err
	}
	rows, args := make([]string, 0, n), make([]any, 0, 2*n)
	for id, n := range changes {
		rows, args = append(rows, "SELECT ? AS id, ? AS n"), append(args, id, n)
	}
	all := `(` + strings.Join(rows, " UNION ALL ") + `) c`
	query := `UPDATE bench_account SET balance = balance + c.n FROM ` + all + ` WHERE bench_account.id = c.id`
	if tx.DriverName() == "mysql" {
		query = `UPDATE bench_account JOIN ` + all + ` ON bench_account.id = c.id SET balance = balance + c.n`
	}
	_, err = tx.ExecContext(ctx, query, args...)
	return err
}

// bareBatches is the least program for batches: pgx alone, one transaction of three flights after the other, which
// claims n keys and changes as many accounts. It has no messages, and looks at nothing.
func bareBatches(b *testing.B, db *testdb.DB, n int, d time.Duration) float64 {
	b.Helper()
	conn, err := pgx.Connect(b.Context(), db.DSN)
	require.NoError(b, err)
	defer conn.Close(b.Context()) //nolint:errcheck // nothing is open
	done, began := 0, time.Now()
	for ; time.Since(began) < d; done += n {
		require.NoError(b, bareBatch(b.Context(), conn, n))
	}
	return float64(done) / time.Since(began).Seconds()
}

func randomKeys(n int) [][]byte {
	keys := make([][]byte, 0, n)
	for range n {
		keys = append(keys, make([]byte, 16))
		_, _ = random.Read(keys[len(keys)-1]) // never fails
	}
	return keys
}

func bareBatch(ctx context.Context, conn *pgx.Conn, n int) error {
	keys := randomKeys(n)
	first := &pgx.Batch{}
	first.Queue(`BEGIN`)
	first.Queue(`
		INSERT INTO millrace_claims (consumer, message_id, payload_hash, token, result, processed_at)
		SELECT 32767, k, 7, 7, 1, 7 FROM unnest($1::BYTEA[]) k ON CONFLICT (consumer, message_id) DO NOTHING`, keys)
	if err := conn.SendBatch(ctx, first).Close(); err != nil {
		return err
	}
	changes := change(n)
	if _, err := conn.Exec(ctx, updateMany, slices.Collect(maps.Keys(changes)), slices.Collect(maps.Values(changes))); err != nil {
		return err
	}
	_, err := conn.Exec(ctx, `COMMIT`)
	return err
}

// leastBatches is [bareBatches] for the messages of a router: what waits is one transaction, whose end all are told.
func leastBatches(b *testing.B, db *testdb.DB, hands int) *service {
	b.Helper()
	conn, err := pgx.Connect(b.Context(), db.DSN)
	require.NoError(b, err)
	waiting := make(chan chan error, hands)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for first := range waiting {
			all := []chan error{first}
			for n := -1; n < len(waiting); {
				n = len(waiting)
				runtime.Gosched()
			}
			for len(waiting) > 0 {
				all = append(all, <-waiting)
			}
			err := bareBatch(context.WithoutCancel(b.Context()), conn, len(all))
			for _, one := range all {
				one <- err
			}
		}
	}()
	b.Cleanup(func() {
		close(waiting)
		<-ended
		require.NoError(b, conn.Close(context.WithoutCancel(b.Context())))
	})
	return serveMany(b, hands, func(*message.Message) error {
		told := make(chan error, 1)
		waiting <- told
		return <-told
	}, func(*message.Router) {})
}

// change returns by how much accounts change for n messages.
func change(n int) map[int64]int64 {
	changes := make(map[int64]int64, n)
	for range n {
		changes[rand.Int64N(accounts)+1]++
	}
	return changes
}

const updateMany = `
	UPDATE bench_account SET balance = balance + c.n
	FROM (SELECT unnest($1::BIGINT[]) AS id, unnest($2::BIGINT[]) AS n) c
	WHERE bench_account.id = c.id`

// inPipeline changes the account of each message by a statement of its own, all in one flight.
func inPipeline(ctx context.Context, n int) error {
	tx, err := pgxdb.Tx(ctx)
	if err != nil {
		return err
	}
	changes := &pgx.Batch{}
	for range n {
		changes.Queue(update, rand.IntN(accounts)+1)
	}
	return tx.SendBatch(ctx, changes).Close()
}

// oneByOne changes the account of each message by a statement of its own.
func oneByOne(ctx context.Context, n int) error {
	for range n {
		if err := rig.Exec(ctx, `UPDATE bench_account SET balance = balance + 1 WHERE id = ?`, rand.IntN(accounts)+1); err != nil {
			return err
		}
	}
	return nil
}
