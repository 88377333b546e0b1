package mysqldb_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/flight"
	"github.com/millrace-go/millrace/mysqldb"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/same"
	"github.com/millrace-go/millrace/tests/servers"
	"github.com/millrace-go/millrace/tests/testdb"
)

// config is that of db, with what this package needs.
func config(t testing.TB, db *testdb.DB) *mysql.Config {
	t.Helper()
	c, err := mysql.ParseDSN(db.DSN)
	require.NoError(t, err)
	c.MultiStatements, c.InterpolateParams = true, true
	return c
}

func saving(t testing.TB, db *testdb.DB) string { return config(t, db).FormatDSN() }

func newPool(t testing.TB, c *mysql.Config) *sqlx.DB {
	t.Helper()
	pool, err := mysqldb.Open(c)
	require.NoError(t, err)
	pool.SetMaxOpenConns(1)
	t.Cleanup(func() { require.NoError(t, pool.Close()) })
	return pool
}

// handler returns h behind an inbox on pool.
func handler(t testing.TB, pool *sqlx.DB, h func(msg *message.Message) error) message.HandlerFunc {
	t.Helper()
	store := rig.NewStore(t, pool, inbox.Config{WithoutPlugin: true})
	wrapped, err := store.Handler(inbox.ConsumerConfig{Name: "billing"},
		func(msg *message.Message) ([]*message.Message, error) { return nil, h(msg) })
	require.NoError(t, err)
	return wrapped
}

func newMessage(t testing.TB) *message.Message {
	t.Helper()
	return message.NewMessageWithContext(t.Context(), watermill.NewUUID(), []byte("{}"))
}

// TestAMessageTakesThreeFlights: BEGIN with the claim, the handler's statement, COMMIT. What the handler publishes
// takes none of its own.
func TestAMessageTakesThreeFlights(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "mysql")
	db.Do(t, `CREATE TABLE work (n INT)`)
	var flights atomic.Int64
	c := config(t, db)
	c.DialFunc = same.Counting(&flights)
	pool := newPool(t, c)
	out := rig.NewOutbox(t, pool, outbox.Config{})
	var publishes int
	handle := handler(t, pool, func(msg *message.Message) error {
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
	for publishes = range 3 {
		_, err := handle(newMessage(t)) // asks the server what it is
		require.NoError(t, err)
		before := flights.Load()
		_, err = handle(newMessage(t))
		require.NoError(t, err)
		if publishes == 0 || !db.MySQL() {
			assert.EqualValues(t, 3, flights.Load()-before, "%d published", publishes)
		}
	}
	var stored int
	require.NoError(t, db.GetContext(t.Context(), &stored, `SELECT COUNT(*) FROM millrace_outbox`))
	assert.Equal(t, 2*(1+2), stored)
}

// TestATransactionThatWasLost: the handler goes on after a deadlock, in autocommit. What would travel with COMMIT is not
// stored, and the message is handled again.
func TestATransactionThatWasLost(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "mysql")
	db.Do(t, `CREATE TABLE work (n INT PRIMARY KEY, word VARCHAR(10))`)
	pool := newPool(t, config(t, db))
	out := rig.NewOutbox(t, pool, outbox.Config{})
	loses := true
	handle := handler(t, pool, func(msg *message.Message) error {
		if err := out.Publish("orders", message.NewMessageWithContext(msg.Context(), watermill.NewUUID(), nil)); err != nil {
			return err
		}
		if loses {
			return rig.Exec(msg.Context(), `ROLLBACK`)
		}
		return rig.Exec(msg.Context(), `INSERT INTO work VALUES (?, 'done')`, 1)
	})
	msg := newMessage(t)
	_, err := handle(msg)
	require.ErrorIs(t, err, inbox.ErrTxEndedByHandler)
	var stored int
	require.NoError(t, db.GetContext(t.Context(), &stored, `SELECT COUNT(*) FROM millrace_outbox`))
	assert.Zero(t, stored)
	loses = false
	_, err = handle(msg)
	require.NoError(t, err)
	require.NoError(t, db.GetContext(t.Context(), &stored, `SELECT COUNT(*) FROM millrace_outbox`))
	assert.Equal(t, 1, stored)
}

// TestALateStatementWithoutItsRow makes the COMMIT fail, on the server.
func TestALateStatementWithoutItsRow(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "mysql")
	db.Do(t, `CREATE TABLE work (n INT)`)
	pool := newPool(t, config(t, db))
	for rows := range 3 {
		db.Do(t, `TRUNCATE work`)
		for range rows {
			db.Do(t, `INSERT INTO work VALUES (1)`)
		}
		tx, err := pool.BeginTxx(t.Context(), nil)
		require.NoError(t, err)
		_, err = tx.ExecContext(t.Context(), `INSERT INTO work VALUES (?)`, 2)
		require.NoError(t, err)
		late := flight.With(t.Context(), &flight.Late{What: flight.Named("close the row"), Rows: 1})
		_, err = tx.ExecContext(late, `DELETE FROM work WHERE n = ?`, 1)
		require.NoError(t, err)
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

// TestALateStatementThatFails dooms the transaction, which MySQL would let go on without it.
func TestALateStatementThatFails(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "mysql")
	db.Do(t, `CREATE TABLE work (n INT PRIMARY KEY)`)
	db.Do(t, `INSERT INTO work VALUES (1)`)
	tx, err := newPool(t, config(t, db)).BeginTxx(t.Context(), nil)
	require.NoError(t, err)
	late := flight.With(t.Context(), &flight.Late{What: flight.Named("store it")})
	_, err = tx.ExecContext(late, `INSERT INTO work VALUES (?)`, 1)
	require.NoError(t, err)
	for n := range 2 { // the handler swallows the error
		_, err = tx.ExecContext(t.Context(), `INSERT INTO work VALUES (?)`, 10+n)
		require.ErrorContains(t, err, "store it")
	}
	err = tx.Commit()
	require.ErrorContains(t, err, "store it")
	assert.True(t, flight.Failed(err))
	assert.Equal(t, 1, db.Count(t, `SELECT COUNT(*) FROM work`))
}

// TestArgumentsAreQuoted in every mode of the server.
func TestArgumentsAreQuoted(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"''", "'NO_BACKSLASH_ESCAPES'", "'ANSI_QUOTES'", "'NO_BACKSLASH_ESCAPES,ANSI_QUOTES'"} {
		db := testdb.On(t, "mysql")
		db.Do(t, `CREATE TABLE work (n INT, word VARBINARY(300))`)
		c := config(t, db)
		c.Params = map[string]string{"sql_mode": mode}
		pool := newPool(t, c)
		every := make([]byte, 256)
		for i := range every {
			every[i] = byte(i)
		}
		for n, word := range [][]byte{every, []byte(`'; DROP TABLE work; -- `), []byte(`\'; DROP TABLE work; -- `), []byte(`?"'\`), {}, {0xbf, 0x27}} {
			tx, err := pool.BeginTxx(t.Context(), nil)
			require.NoError(t, err)
			_, err = tx.ExecContext(t.Context(), `INSERT INTO work VALUES (?, ?)`, n, word)
			require.NoError(t, err)
			late := flight.With(t.Context(), &flight.Late{What: flight.Named("write a word"), Rows: 1})
			_, err = tx.ExecContext(late, `UPDATE work SET n = n + 100 WHERE word = ?`, word)
			require.NoError(t, err)
			require.NoError(t, tx.Commit(), "%s %q", mode, word)
			var stored []byte
			require.NoError(t, db.GetContext(t.Context(), &stored, `SELECT word FROM work WHERE n = ?`, n+100))
			assert.Equal(t, word, stored, mode)
		}
	}
}

// TestATextThatIsTooLarge for one packet is sent statement by statement.
func TestATextThatIsTooLarge(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "mysql")
	db.Do(t, `CREATE TABLE work (word LONGBLOB)`)
	c := config(t, db)
	c.MaxAllowedPacket = 1 << 20
	pool := newPool(t, c)
	tx, err := pool.BeginTxx(t.Context(), nil)
	require.NoError(t, err)
	for range 3 {
		late := flight.With(t.Context(), &flight.Late{What: flight.Named("write a word"), Rows: 1})
		_, err = tx.ExecContext(late, `INSERT INTO work VALUES (?)`, make([]byte, 400<<10))
		require.NoError(t, err)
	}
	require.NoError(t, tx.Commit())
	var n int
	require.NoError(t, db.GetContext(t.Context(), &n, `SELECT COUNT(*) FROM work`))
	assert.Equal(t, 3, n)
}

// TestAProxyThatLosesTheServer at a COMMIT leaves it in doubt, and the redelivery finds out.
func TestAProxyThatLosesTheServer(t *testing.T) {
	t.Parallel()
	for _, code := range []uint16{2013, 9001} { // as the client library has it, and as ProxySQL
		db := testdb.On(t, "mysql")
		db.Do(t, `CREATE TABLE work (n INT)`)
		works := func() int { return db.Count(t, `SELECT COUNT(*) FROM work`) }
		says := append([]byte{0, 0, 0, 1, 0xff, byte(code), byte(code >> 8)}, "#HY000the server is lost"...)
		says[0] = byte(len(says) - 4)
		proxy := &same.Losing{Commit: []byte("; COMMIT"), Says: says, Done: func() {
			rig.Eventually(t, "the server has committed", func() bool { return works() == 2 })
		}}
		c := config(t, db)
		c.DialFunc = proxy.Dial
		handle := handler(t, newPool(t, c), func(msg *message.Message) error {
			return rig.Exec(msg.Context(), `INSERT INTO work VALUES (?)`, 1)
		})
		_, err := handle(newMessage(t))
		require.NoError(t, err)
		msg := newMessage(t)
		proxy.Next.Store(true)
		_, err = handle(msg)
		require.ErrorContains(t, err, "the server is lost")
		require.NotErrorIs(t, err, inbox.ErrTxEndedByHandler)
		_, err = handle(msg)
		require.NoError(t, err)
		assert.Equal(t, 2, works(), code)
	}
}

// TestAMessageLargerThanThePacketIsNamed by Publish, as with go-sql-driver/mysql.
func TestAMessageLargerThanThePacketIsNamed(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "mysql")
	pool := newPool(t, config(t, db))
	pool.SetMaxOpenConns(2) // one asks for the packet
	out := rig.NewOutbox(t, pool, outbox.Config{})
	limit := db.Count(t, `SELECT @@max_allowed_packet`)
	for _, size := range []int{limit + 1<<20, limit / 10 * 6} { // zeros are escaped
		var published error
		handle := handler(t, pool, func(msg *message.Message) error {
			published = out.Publish("orders", message.NewMessageWithContext(msg.Context(), "large", make([]byte, size)))
			return published
		})
		_, err := handle(newMessage(t))
		require.Error(t, err)
		require.ErrorIs(t, published, outbox.ErrTooLarge, "%d bytes", size)
		assert.ErrorContains(t, published, `message "large"`)
	}
}

// TestSettings that are missing are named.
func TestSettings(t *testing.T) {
	t.Parallel()
	for _, dsn := range []string{"tcp(127.0.0.1)/", "tcp(127.0.0.1)/?multiStatements=true", "tcp(127.0.0.1)/?interpolateParams=true"} {
		_, err := sqlx.Open("mysqldb", dsn)
		require.ErrorContains(t, err, "multiStatements=true and interpolateParams=true")
	}
	const both = "?multiStatements=true&interpolateParams=true"
	for _, charset := range []string{"gbk", "utf8,utf8mb4"} {
		_, err := sqlx.Open("mysqldb", "tcp(127.0.0.1)/"+both+"&charset="+charset)
		require.ErrorContains(t, err, "charset=utf8mb4")
	}
	for _, charset := range []string{"utf8mb4", "utf8mb4,utf8"} {
		pool, err := sqlx.Open("mysqldb", "u:a/?charset=gbk@tcp(127.0.0.1)/"+both+"&charset="+charset)
		require.NoError(t, err)
		require.NoError(t, pool.Close())
	}
	_, err := sqlx.Open("mysqldb", "this is none")
	require.Error(t, err)
	_, err = mysqldb.Open(&mysql.Config{MultiStatements: true})
	require.ErrorContains(t, err, "interpolateParams")
}

// TestARollbackWithoutAnAnswer ends with the context, and a moment.
func TestARollbackWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	c := config(t, testdb.On(t, "mysql"))
	wire := servers.Proxy(t, c.Addr)
	c.Addr = wire.Addr()
	pool := newPool(t, c)
	failed := errors.New("it fails")
	ctx, cancel := context.WithCancel(t.Context())
	ended := rig.Go(func() error {
		return outbox.InTx(ctx, pool, func(ctx context.Context, tx *sqlx.Tx) error {
			if _, err := tx.ExecContext(ctx, `DO ?`, 1); err != nil {
				return err
			}
			wire.Freeze()
			time.AfterFunc(time.Second, cancel)
			return failed
		})
	})
	require.ErrorIs(t, rig.Within(t, ended, "the end of the transaction"), failed)
	wire.Thaw()
}

// traced is a connector as a tracer has it: only the connection tells which driver is behind it.
type traced struct{ driver.Connector }

func (traced) Driver() driver.Driver { return nil }

func (c traced) Connect(ctx context.Context) (driver.Conn, error) {
	inner, err := c.Connector.Connect(ctx)
	return struct {
		driver.Conn
		driver.ConnBeginTx
		driver.ExecerContext
		driver.QueryerContext
	}{inner, inner.(driver.ConnBeginTx), inner.(driver.ExecerContext), inner.(driver.QueryerContext)}, err
}

// TestCheckKnowsWhatATracerWraps: this driver needs multiStatements.
func TestCheckKnowsWhatATracerWraps(t *testing.T) {
	t.Parallel()
	connector, err := mysqldb.NewConnector(config(t, testdb.On(t, "mysql")))
	require.NoError(t, err)
	pool := sqlx.NewDb(sql.OpenDB(traced{connector}), "mysqldb")
	t.Cleanup(func() { require.NoError(t, pool.Close()) })
	found, err := rig.NewStore(t, pool, inbox.Config{}).Check(t.Context())
	require.NoError(t, err)
	for _, f := range found {
		assert.NotEqual(t, "multiStatements", f.Subject)
	}
}
