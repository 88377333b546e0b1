package pgxdb_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/flight"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgxdb"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/same"
	"github.com/millrace-go/millrace/tests/testdb"
)

// modes are those in which flights are saved.
var modes = []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec}

// counting returns a pool of one connection, of which the flights are counted.
func counting(t *testing.T, db *testdb.DB, mode pgx.QueryExecMode, flights *atomic.Int64, tracers ...pgx.QueryTracer) *sqlx.DB {
	t.Helper()
	config, err := pgx.ParseConfig(db.DSN)
	require.NoError(t, err)
	config.DefaultQueryExecMode, config.DialFunc = mode, same.Counting(flights)
	for _, tracer := range tracers {
		config.Tracer = tracer
	}
	pool := pgxdb.Open(config, stdlib.OptionShouldPing(func(context.Context, stdlib.ShouldPingParams) bool { return false }))
	pool.SetMaxOpenConns(1)
	t.Cleanup(func() { require.NoError(t, pool.Close()) })
	return pool
}

// TestAMessageTakesThreeFlights: BEGIN with the claim, the handler's statement, COMMIT. What the handler publishes
// takes none of its own.
func TestAMessageTakesThreeFlights(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		db := testdb.On(t, "postgres")
		db.Do(t, `CREATE TABLE work (n INT)`)
		var flights atomic.Int64
		var sent notices
		pool := counting(t, db, mode, &flights, &sent)
		out := rig.NewOutbox(t, pool, outbox.Config{})
		var publishes int
		handle := handler(t, pool, inbox.ConsumerConfig{}, func(msg *message.Message) error {
			if err := rig.Exec(msg.Context(), `INSERT INTO work VALUES (?)`, 1); err != nil {
				return err
			}
			for range publishes {
				if err := out.Publish("orders", message.NewMessageWithContext(msg.Context(), watermill.NewUUID(), nil)); err != nil {
					return err
				}
			}
			return nil
		})
		published := 0
		for publishes = range 3 {
			least := int64(100)
			for range 10 { // the first prepares statements
				before := flights.Load() - sent.Load() // which is not each message's
				_, err := handle(newMessage(t))
				require.NoError(t, err)
				least = min(least, flights.Load()-sent.Load()-before)
				published += publishes
			}
			assert.EqualValues(t, 3, least, "%v, %d published", mode, publishes)
		}
		assert.Equal(t, published, db.Count(t, `SELECT COUNT(*) FROM millrace_outbox`))
	}
}

// TestACopyTakesThreeFlights that another process has handled: BEGIN with the claim, ROLLBACK, the look at the claim.
func TestACopyTakesThreeFlights(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		db := testdb.On(t, "postgres")
		var flights atomic.Int64
		pool := counting(t, db, mode, &flights)
		fails := func(*message.Message) error { return errors.New("it is a copy") }
		msg := newMessage(t)
		_, err := handler(t, pool, inbox.ConsumerConfig{}, func(*message.Message) error { return nil })(msg)
		require.NoError(t, err)
		_, err = handler(t, pool, inbox.ConsumerConfig{}, fails)(msg) // prepares the look
		require.NoError(t, err)
		other := handler(t, pool, inbox.ConsumerConfig{}, fails)
		_, err = other(newMessage(t)) // registers the consumer
		require.Error(t, err)
		before := flights.Load()
		_, err = other(msg)
		require.NoError(t, err)
		assert.EqualValues(t, 3, flights.Load()-before, mode)
	}
}

// TestOtherModes work as pgx's driver does.
func TestOtherModes(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec} {
		db := testdb.On(t, "postgres")
		db.Do(t, `CREATE TABLE work (n INT)`)
		pool := newPool(t, db, func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = mode })
		handle := handler(t, pool, inbox.ConsumerConfig{}, func(msg *message.Message) error {
			return rig.Exec(msg.Context(), `INSERT INTO work VALUES (?)`, 1)
		})
		msg := newMessage(t)
		for range 2 {
			_, err := handle(msg)
			require.NoError(t, err, mode)
		}
		var n int
		require.NoError(t, pool.GetContext(t.Context(), &n, `SELECT COUNT(*) FROM work`))
		assert.Equal(t, 1, n, mode)
	}
}

// TestAStatementThatFailsWithCOMMIT is named, and nothing is committed.
func TestAStatementThatFailsWithCOMMIT(t *testing.T) {
	t.Parallel()
	for name, breaks := range map[string]string{
		"it cannot be prepared": `DROP TABLE millrace_outbox CASCADE`,
		"the server refuses it": `ALTER TABLE millrace_outbox ADD CHECK (topic IS NULL)`,
	} {
		db := testdb.On(t, "postgres")
		db.Do(t, `CREATE TABLE work (n INT)`)
		pool := newPool(t, db)
		out := rig.NewOutbox(t, pool, outbox.Config{})
		handle := handler(t, pool, inbox.ConsumerConfig{Outbox: out}, func(msg *message.Message) error {
			m := message.NewMessage("announced", nil)
			m.SetContext(msg.Context())
			return errors.Join(out.Publish("orders", m), rig.Exec(msg.Context(), `INSERT INTO work VALUES (?)`, 1))
		})
		db.Do(t, breaks)
		_, err := handle(newMessage(t))
		require.ErrorContains(t, err, `store message "announced"`, name)
		var rows int
		require.NoError(t, db.GetContext(t.Context(), &rows, `SELECT (SELECT COUNT(*) FROM work) + (SELECT COUNT(*) FROM millrace_claims)`))
		assert.Zero(t, rows, name)
	}
}

// late is a statement that may wait for COMMIT, and must change one row.
func late(ctx context.Context) context.Context {
	return flight.With(ctx, &flight.Late{What: flight.Named("close the row"), Rows: 1})
}

// TestALateStatementWithoutItsRow makes the COMMIT fail, on the server.
func TestALateStatementWithoutItsRow(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "postgres")
	db.Do(t, `CREATE TABLE work (n INT)`)
	for _, mode := range modes {
		pool := newPool(t, db, func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = mode })
		for rows := range 3 {
			db.Do(t, `TRUNCATE work`)
			for range rows {
				db.Do(t, `INSERT INTO work VALUES (1)`)
			}
			tx, err := pool.BeginTxx(t.Context(), nil)
			require.NoError(t, err)
			_, err = tx.ExecContext(t.Context(), `INSERT INTO work VALUES ($1)`, 2)
			require.NoError(t, err)
			result, err := tx.ExecContext(late(t.Context()), `DELETE FROM work WHERE n = $1`, 1)
			require.NoError(t, err)
			n, err := result.RowsAffected()
			require.NoError(t, err)
			assert.EqualValues(t, 1, n, "it is promised")
			err = tx.Commit()
			var left []int
			require.NoError(t, db.SelectContext(t.Context(), &left, `SELECT n FROM work`))
			if rows == 1 {
				require.NoError(t, err)
				assert.Equal(t, []int{2}, left)
				continue
			}
			require.ErrorIs(t, err, flight.ErrRows)
			require.ErrorContains(t, err, "close the row")
			assert.True(t, flight.Failed(err))
			assert.Len(t, left, rows, "nothing was committed")
			assert.NotContains(t, left, 2)
		}
	}
}

// TestALateStatementAndASavepoint: what is rolled back to a savepoint set after it stays, and what came after the
// savepoint goes.
func TestALateStatementAndASavepoint(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "postgres")
	db.Do(t, `CREATE TABLE work (n INT)`)
	pool := newPool(t, db)
	tx, err := pool.BeginTxx(t.Context(), nil)
	require.NoError(t, err)
	exec := func(ctx context.Context, query string, args ...any) {
		_, err := tx.ExecContext(ctx, query, args...)
		require.NoError(t, err, query)
	}
	exec(late(t.Context()), `INSERT INTO work VALUES ($1)`, 1)
	exec(t.Context(), `SAVEPOINT here`)
	exec(late(t.Context()), `INSERT INTO work VALUES ($1)`, 2)
	_, err = tx.ExecContext(late(t.Context()), `INSERT INTO nowhere VALUES ($1)`, 1)
	require.Error(t, err, "it does not wait, so that the caller can go back to the savepoint")
	exec(t.Context(), `ROLLBACK TO here`)
	exec(late(t.Context()), `INSERT INTO work VALUES ($1)`, 3)
	require.NoError(t, tx.Commit())
	var left []int
	require.NoError(t, db.SelectContext(t.Context(), &left, `SELECT n FROM work ORDER BY n`))
	assert.Equal(t, []int{1, 3}, left)
}

// TestWhatWaitsIsBounded: a handler that publishes without end does not fill the memory, and what it changes after
// Publish changes nothing of what was published.
func TestWhatWaitsIsBounded(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "postgres")
	var flights atomic.Int64
	pool := newPool(t, db, func(c *pgx.ConnConfig) { c.DialFunc = same.Counting(&flights) })
	out := rig.NewOutbox(t, pool, outbox.Config{})
	payload := make([]byte, 300<<10)
	require.NoError(t, outbox.InTx(t.Context(), pool, func(ctx context.Context, _ *sqlx.Tx) error {
		for i := range 250 {
			m := message.NewMessageWithContext(ctx, strconv.Itoa(i), []byte("small"))
			require.NoError(t, out.Publish("orders", m))
			copy(m.Payload, "wrong")
		}
		before := flights.Load()
		assert.GreaterOrEqual(t, before, int64(2))
		for i := range 4 {
			copy(payload, strconv.Itoa(i))
			require.NoError(t, out.Publish("orders", message.NewMessageWithContext(ctx, "large", payload)))
		}
		assert.Greater(t, flights.Load(), before)
		return nil
	}))
	assert.Equal(t, 250, db.Count(t, `SELECT COUNT(*) FROM millrace_outbox WHERE payload = 'small'`))
	assert.Equal(t, 4, db.Count(t, `SELECT COUNT(DISTINCT payload) FROM millrace_outbox WHERE uuid = 'large'`))
}

// TestALateStatementThatCannotBeSent makes every later statement and the COMMIT fail.
func TestALateStatementThatCannotBeSent(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "postgres")
	db.Do(t, `CREATE TABLE work (n INT)`)
	pool := newPool(t, db)
	tx, err := pool.BeginTxx(t.Context(), nil)
	require.NoError(t, err)
	_, err = tx.ExecContext(late(t.Context()), `INSERT INTO work VALUES ($1)`, struct{}{})
	require.NoError(t, err)
	_, err = tx.ExecContext(t.Context(), `INSERT INTO work VALUES ($1)`, 1)
	require.ErrorContains(t, err, "close the row")
	err = tx.Commit()
	require.ErrorContains(t, err, "close the row")
	assert.True(t, flight.Failed(err))
	var n int
	require.NoError(t, pool.GetContext(t.Context(), &n, `SELECT COUNT(*) FROM work`))
	assert.Zero(t, n)
}

// TestConnectionsThatDiedInThePool are not noticed by who begins a transaction.
func TestConnectionsThatDiedInThePool(t *testing.T) {
	t.Parallel()
	const connections = 5
	db := testdb.On(t, "postgres")
	pool := newPool(t, db, func(c *pgx.ConnConfig) { c.RuntimeParams["application_name"] = "dies" })
	pool.SetMaxIdleConns(connections)
	open := make([]*sqlx.Conn, connections)
	for i := range open {
		var err error
		open[i], err = pool.Connx(t.Context())
		require.NoError(t, err)
	}
	for _, c := range open {
		require.NoError(t, c.Close())
	}
	db.Do(t, `SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'dies' AND datname = current_database()`)
	for range connections {
		tx, err := pool.BeginTxx(t.Context(), nil)
		require.NoError(t, err)
		_, err = tx.ExecContext(t.Context(), `SELECT $1::INT`, 1)
		require.NoError(t, err)
		require.NoError(t, tx.Commit())
	}
}

// TestPlansAreBounded: a service that makes a text for each statement does not fill the server with prepared ones.
func TestPlansAreBounded(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "postgres")
	pool := newPool(t, db)
	pool.SetMaxOpenConns(1)
	for i := range 300 {
		tx, err := pool.BeginTxx(t.Context(), nil)
		require.NoError(t, err)
		_, err = tx.ExecContext(t.Context(), fmt.Sprintf(`SELECT %d + $1`, i), 1)
		require.NoError(t, err)
		require.NoError(t, tx.Commit())
	}
	var n int
	require.NoError(t, pool.GetContext(t.Context(), &n, `SELECT COUNT(*) FROM pg_prepared_statements`))
	assert.LessOrEqual(t, n, 200)
	_, err := pool.ExecContext(t.Context(), `DEALLOCATE ALL`)
	require.NoError(t, err)
	var failed int
	for range 3 { // the first ones find out
		failed += begun(t, pool)
	}
	assert.Positive(t, failed)
	assert.Zero(t, begun(t, pool))
}

func begun(t *testing.T, pool *sqlx.DB) (failed int) {
	t.Helper()
	tx, err := pool.BeginTxx(t.Context(), nil)
	require.NoError(t, err)
	if _, err = tx.ExecContext(t.Context(), `SELECT 7 + $1`, 1); err != nil {
		failed = 1
	}
	_ = tx.Rollback()
	return failed
}

// TestThePoolOfAService is used by the service and by Millrace together.
func TestThePoolOfAService(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "postgres")
	db.Do(t, `CREATE TABLE work (n INT)`)
	config, err := pgxpool.ParseConfig(db.DSN)
	require.NoError(t, err)
	config.MaxConns = 2
	native, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	defer native.Close()
	pool := pgxdb.OpenPool(native)
	defer func() { require.NoError(t, pool.Close()) }()
	handle := handler(t, pool, inbox.ConsumerConfig{}, func(msg *message.Message) error {
		return rig.Exec(msg.Context(), `INSERT INTO work VALUES (?)`, 1)
	})
	for range 10 {
		_, err := handle(newMessage(t))
		require.NoError(t, err)
	}
	var n int
	require.NoError(t, native.QueryRow(t.Context(), `SELECT COUNT(*) FROM work`).Scan(&n))
	assert.Equal(t, 10, n)
	assert.LessOrEqual(t, native.Stat().TotalConns(), int32(2))
}
