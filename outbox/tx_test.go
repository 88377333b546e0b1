package outbox_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
)

// silent is a driver that nobody knows, for a server that answers no questions.
type silent struct{}

var errAsked = errors.New("the server was asked something")

func (silent) Connect(context.Context) (driver.Conn, error) { return silent{}, nil }
func (silent) Driver() driver.Driver                        { return silent{} }
func (silent) Open(string) (driver.Conn, error)             { return silent{}, nil }
func (silent) Prepare(string) (driver.Stmt, error)          { return nil, errAsked }
func (silent) Begin() (driver.Tx, error)                    { return silent{}, nil }
func (silent) Commit() error                                { return nil }
func (silent) Rollback() error                              { return nil }
func (silent) Close() error                                 { return nil }

// Tracing libraries wrap drivers, and give them names of their own.
func TestInTxAsksTheServerNothing(t *testing.T) {
	db := sqlx.NewDb(sql.OpenDB(silent{}), "traced")
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	ran := 0
	require.NoError(t, outbox.InTx(t.Context(), db, func(ctx context.Context, tx *sqlx.Tx) error {
		ran++
		_, err := tx.ExecContext(ctx, "SELECT 1")
		require.ErrorIs(t, err, errAsked)
		return nil
	}))
	assert.Equal(t, 1, ran)
}

// A relay that looked before the commit would find nothing.
func TestADecisionInATransactionWakesRelaysAfterTheCommit(t *testing.T) {
	db := exampleDB(t.TempDir())
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	woken := 0
	out, err := outbox.NewPublisher(db, outbox.Config{Standalone: true, AfterCommit: func() { woken++ }})
	require.NoError(t, err)
	require.NoError(t, out.Migrate(t.Context()))
	require.NoError(t, out.Publish("orders", message.NewMessage("a", nil)))
	db.MustExec(`UPDATE millrace_outbox SET status = 3`)
	woken = 0
	require.NoError(t, outbox.InTx(t.Context(), db, func(ctx context.Context, _ *sqlx.Tx) error {
		defer func() { assert.Zero(t, woken) }()
		return out.Retry(ctx, 1, outbox.Operator{Name: "ann", Reason: "the queue exists now"})
	}))
	assert.Equal(t, 1, woken)
}
