package servers_test

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/servers"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestPostgresKeepsWhatWasCommittedBeforeAKill(t *testing.T) {
	testdb.Turn(t, 1, keepers)
	t.Parallel()
	s := servers.Postgres(t, "lock_timeout=7s")
	keepsCommitted(t, "postgres", s)
	assert.Equal(t, "7s", value(t, testdb.At(t, "postgres", s.DSN()), "SHOW lock_timeout"))
}

func TestMariaDBKeepsWhatWasCommittedBeforeAKill(t *testing.T) {
	testdb.Turn(t, 1, keepers)
	t.Parallel()
	s := servers.MariaDB(t, "innodb-lock-wait-timeout=7")
	keepsCommitted(t, "mysql", s)
	got := value(t, testdb.At(t, "mysql", s.DSN()), "SELECT @@innodb_lock_wait_timeout")
	assert.Equal(t, "7", got)
}

func TestPairKeepsWhatWasCommittedOverAFailOver(t *testing.T) {
	testdb.Turn(t, 1, keepers)
	t.Parallel()
	pair := servers.PostgresPair(t)
	wire := servers.Proxy(t, pair.Primary().Addr())
	db := testdb.At(t, "postgres", strings.Replace(pair.Primary().DSN(), pair.Primary().Addr(), wire.Addr(), 1))
	db.Do(t, "CREATE TABLE kept (n VARCHAR(10))")
	for _, n := range []string{"once", "twice"} { // there and back
		db.Do(t, "INSERT INTO kept VALUES ('"+n+"')")
		pair.FailOver()
		wire.Aim(pair.Primary().Addr())
		wire.Cut()
		wire.Mend()
		pair.Rebuild()
		reconnect(t, db)
		require.Equal(t, n, value(t, db, "SELECT MAX(n) FROM kept"))
	}
}

// keepsCommitted writes, kills, starts, reads back; and again with Stop.
func keepsCommitted(t *testing.T, dialect string, s *servers.Server) {
	t.Helper()
	db := testdb.At(t, dialect, s.DSN())
	db.Do(t, "CREATE TABLE things (id INTEGER PRIMARY KEY)")
	db.Do(t, "INSERT INTO things VALUES (1)")
	s.Kill()
	require.Error(t, ping(t, db), "it answers after a kill")
	s.Start()
	reconnect(t, db)
	assert.Equal(t, "1", value(t, db, "SELECT COUNT(*) FROM things"))
	db.Do(t, "INSERT INTO things VALUES (2)")
	s.Stop()
	require.Error(t, ping(t, db), "it answers after a stop")
	s.Start()
	reconnect(t, db)
	assert.Equal(t, "2", value(t, db, "SELECT COUNT(*) FROM things"))
}

func TestFreezeKeepsConnectionsAndAnswersNothing(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t)
	db := testdb.At(t, "postgres", s.DSN(), testdb.Pool(1))
	require.NoError(t, ping(t, db))
	s.Freeze()
	answer := make(chan error, 1)
	go func() { answer <- db.PingContext(context.WithoutCancel(t.Context())) }()
	select {
	case err := <-answer:
		t.Fatalf("it answered while frozen: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	s.Thaw()
	require.NoError(t, <-answer)
}

func TestPgBouncerPoolsTransactions(t *testing.T) {
	testdb.Turn(t, 1, keepers)
	t.Parallel()
	pg := servers.Postgres(t)
	b := servers.PgBouncer(t, pg.DSN(), "default_pool_size=1")
	direct := testdb.At(t, "postgres", pg.DSN())
	db := direct.Open(t, testdb.Via(b.Addr()),
		testdb.Params("default_query_exec_mode", "simple_protocol"))
	first, second := connection(t, db), connection(t, db)
	assert.Equal(t, backend(t, first), backend(t, second), "two clients, one server connection")
	db.Do(t, "CREATE TABLE things (id INTEGER PRIMARY KEY)")
	b.Kill()
	require.Error(t, ping(t, db))
	b.Start()
	reconnect(t, db)
	assert.Equal(t, "0", value(t, db, "SELECT COUNT(*) FROM things"))
	b.Stop()
	require.Error(t, ping(t, db))
}

func TestRabbitMQKeepsAPersistentMessageOverAKill(t *testing.T) {
	testdb.Turn(t, 1, keepers)
	t.Parallel()
	s := servers.RabbitMQ(t)
	_, ch := channel(t, s)
	q, err := ch.QueueDeclare("things", true, false, false, false, nil)
	require.NoError(t, err)
	s.Restart()
	conn, ch := channel(t, s)
	require.NoError(t, ch.Confirm(false))
	sent, err := ch.PublishWithDeferredConfirmWithContext(t.Context(), "", q.Name, true, false,
		amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte("kept")})
	require.NoError(t, err)
	require.True(t, sent.Wait())
	closed := conn.NotifyClose(make(chan *amqp.Error, 1))
	s.Kill()
	require.NotNil(t, <-closed, "the connection ended in order")
	s.Start()
	require.Equal(t, "kept", take(t, s, q.Name))
	s.Stop()
	_, err = amqp.Dial(s.URL())
	require.Error(t, err)
}

func channel(t *testing.T, s *servers.Server) (*amqp.Connection, *amqp.Channel) {
	t.Helper()
	conn, err := amqp.Dial(s.URL())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() }) // the server may be down
	ch, err := conn.Channel()
	require.NoError(t, err)
	return conn, ch
}

func take(t *testing.T, s *servers.Server, queue string) string {
	t.Helper()
	_, ch := channel(t, s)
	deliveries, err := ch.ConsumeWithContext(t.Context(), queue, "", true, false, false, false, nil)
	require.NoError(t, err)
	return string((<-deliveries).Body)
}

func ping(t *testing.T, db *testdb.DB) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	return db.PingContext(ctx)
}

// reconnect uses up the connections that the restart broke.
func reconnect(t *testing.T, db *testdb.DB) {
	t.Helper()
	require.Eventually(t, func() bool { return ping(t, db) == nil },
		rig.Patience, 10*time.Millisecond)
}

func value(t *testing.T, db *testdb.DB, query string) (v string) {
	t.Helper()
	require.NoError(t, db.GetContext(t.Context(), &v, query))
	return v
}

func connection(t *testing.T, db *testdb.DB) *sql.Conn {
	t.Helper()
	conn, err := db.Conn(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() }) // the pooler was killed
	return conn
}

func backend(t *testing.T, conn *sql.Conn) (pid int) {
	t.Helper()
	require.NoError(t, conn.QueryRowContext(t.Context(), "SELECT pg_backend_pid()").Scan(&pid))
	return pid
}

// Another process, which looks for a port while a server is down, must not take the server's.
func TestAPortIsClaimed(t *testing.T) {
	t.Parallel()
	_, err := net.Listen("unix", fmt.Sprintf("@millrace-tests-port-%d", servers.FreePort(t)))
	require.ErrorIs(t, err, syscall.EADDRINUSE)
}
