package tests_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestCheckFindsMultiStatements(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "mysql")
	if db.DriverName() == "mysqldb" {
		t.Log("it needs them")
		return
	}
	pool := documented(t, db, "multiStatements", "true")
	pool.SetMaxOpenConns(2)
	assert.Equal(t, []string{"warning multiStatements"}, subjects(check(t, pool, inbox.Config{})))
}

// pgx has results as texts in this mode, and reads bytes in one form only.
func TestCheckFindsBytesThatTheDriverCannotRead(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "postgres")
	if db.Driver != "pgx" {
		t.Log("it reads both forms")
		return
	}
	found := check(t, documented(t, db, "bytea_output", "escape", "default_query_exec_mode", "exec"), inbox.Config{})
	require.Equal(t, []string{"error driver"}, subjects(found))
	assert.Contains(t, found[0].Remedy, "bytea_output")
	assert.Empty(t, check(t, documented(t, db, "bytea_output", "escape"), inbox.Config{}))
}

// TestAKeyIsNoStatement: in gbk a server takes the backslash for a part of the character before it, so that the quote after
// it ends the text. Without the plugin nobody has called Check.
func TestAKeyIsNoStatement(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "mysql")
	if db.DriverName() == "mysqldb" {
		t.Log("it refuses to connect")
		return
	}
	b := newBed(t, db)
	b.store = rig.NewStore(t, db.Open(t, testdb.Params("charset", "gbk", "interpolateParams", "true")).DB, inbox.Config{WithoutPlugin: true})
	for _, h := range []message.HandlerFunc{b.inbox(effect), millrace.Deduplicate{Claims: b.store.Leases(), Consumer: "mail"}.Middleware(effect)} {
		_, err := h(message.NewMessage("\xbf' OR 1 -- ", nil))
		require.ErrorContains(t, err, "set charset=utf8mb4 (character_set_client is gbk)")
	}
	require.ErrorContains(t, b.store.Verify(t.Context(), inbox.ConsumerConfig{Name: "billing"}), "set charset=utf8mb4")
}

// lateConn has no connection before the deadline, which the dialer's timer says, not the context's.
type lateConn struct{ driver.Connector }

func (l lateConn) Connect(ctx context.Context) (driver.Conn, error) {
	deadline, bounded := ctx.Deadline()
	if !bounded {
		return l.Connector.Connect(ctx)
	}
	for time.Now().Before(deadline) {
		runtime.Gosched()
	}
	return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}
}

// A server that takes a second to let anybody in keeps no service from starting.
func TestCheckDoesWithoutASecondConnection(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "postgres")
	migrate(t, db, inbox.Config{})
	pool := documented(t, db)
	opener, err := pool.DB.Driver().(driver.DriverContext).OpenConnector(pool.DSN)
	require.NoError(t, err)
	late := sqlx.NewDb(sql.OpenDB(lateConn{opener}), pool.DriverName())
	late.SetMaxOpenConns(2)
	t.Cleanup(func() { assert.NoError(t, late.Close()) })
	store := rig.NewStore(t, late, inbox.Config{})
	_, err = store.Check(t.Context())
	require.NoError(t, err)
}
