package pgxdb_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/pgxdb"
	"github.com/millrace-go/millrace/tests/testdb"
)

// transact runs two statements that pgxdb prepares.
func transact(t *testing.T, pool *sqlx.DB) {
	t.Helper()
	tx, err := pool.BeginTxx(t.Context(), nil)
	require.NoError(t, err)
	_, err = tx.ExecContext(t.Context(), `INSERT INTO work VALUES ($1)`, 1)
	assert.NoError(t, err)
	_, err = tx.ExecContext(late(t.Context()), `DELETE FROM work WHERE n = $1`, 1)
	assert.NoError(t, err)
	assert.NoError(t, tx.Commit())
}

// TestPlansThatAPoolDeallocates between transactions are prepared again.
func TestPlansThatAPoolDeallocates(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "postgres")
	db.Do(t, `CREATE TABLE work (n INT)`)

	config, err := pgx.ParseConfig(db.DSN)
	require.NoError(t, err)
	own := pgxdb.Open(config, stdlib.OptionResetSession(func(ctx context.Context, c *pgx.Conn) error { return c.DeallocateAll(ctx) }))
	own.SetMaxOpenConns(1)
	defer func() { require.NoError(t, own.Close()) }()

	pooled, err := pgxpool.ParseConfig(db.DSN)
	require.NoError(t, err)
	pooled.MaxConns = 1
	pooled.AfterRelease = func(c *pgx.Conn) bool { return c.DeallocateAll(context.Background()) == nil }
	native, err := pgxpool.NewWithConfig(t.Context(), pooled)
	require.NoError(t, err)
	defer native.Close()
	service := pgxdb.OpenPool(native)
	defer func() { require.NoError(t, service.Close()) }()

	for _, pool := range []*sqlx.DB{own, service} {
		for range 4 {
			transact(t, pool)
		}
	}
}

// TestPlansThatAHandlerDeallocates are prepared again in the same transaction.
func TestPlansThatAHandlerDeallocates(t *testing.T) {
	each(t, func(t *testing.T, _ *testdb.DB, pool *sqlx.DB) {
		pool.SetMaxOpenConns(1)
		for range 4 {
			require.NoError(t, in(t, pool, func(ctx context.Context, tx pgx.Tx) error { return tx.Conn().DeallocateAll(ctx) }))
		}
	})
}
