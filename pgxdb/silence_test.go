package pgxdb_test

import (
	"context"
	"net"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/owned"
	"github.com/millrace-go/millrace/pgxdb"
	"github.com/millrace-go/millrace/tests/same"
	"github.com/millrace-go/millrace/tests/testdb"
)

type dial = func(ctx context.Context, network, address string) (net.Conn, error)

func TestASilentServerIsNoTwin(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T, db *testdb.DB, dial dial) *sqlx.DB{
		"Open": func(t *testing.T, db *testdb.DB, dial dial) *sqlx.DB {
			return newPool(t, db, func(c *pgx.ConnConfig) { c.DialFunc = dial })
		},
		"OpenPool": func(t *testing.T, db *testdb.DB, dial dial) *sqlx.DB {
			config, err := pgxpool.ParseConfig(db.DSN)
			require.NoError(t, err)
			config.MaxConns, config.ConnConfig.DialFunc = 6, dial // those that are being closed count
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			require.NoError(t, err)
			t.Cleanup(pool.Close)
			behind := pgxdb.OpenPool(pool)
			t.Cleanup(func() { require.NoError(t, behind.Close()) })
			return behind
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.On(t, "postgres")
			same.Silence(t, func(dial dial) *sqlx.DB { return open(t, db, dial) })
		})
	}
}

// TestAPgxpoolThatIsUsedUpIsNoSilence: who uses it beside may have all its connections.
func TestAPgxpoolThatIsUsedUpIsNoSilence(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*pgxpool.Pool) *sqlx.DB{
		"pgxdb.OpenPool":        func(p *pgxpool.Pool) *sqlx.DB { return pgxdb.OpenPool(p) },
		"stdlib.OpenDBFromPool": func(p *pgxpool.Pool) *sqlx.DB { return sqlx.NewDb(stdlib.OpenDBFromPool(p), "pgx") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.On(t, "postgres")
			config, err := pgxpool.ParseConfig(db.DSN)
			require.NoError(t, err)
			config.MaxConns = 1
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			require.NoError(t, err)
			defer pool.Close()
			behind := open(pool)
			defer func() { assert.NoError(t, behind.Close()) }()
			require.NoError(t, owned.Ask(t.Context(), behind.DB))

			beside, err := pool.Acquire(t.Context())
			require.NoError(t, err)
			defer beside.Release()
			err = owned.Ask(t.Context(), behind.DB)
			require.ErrorIs(t, err, owned.ErrUnasked)
			assert.NotErrorIs(t, err, owned.ErrUnanswered)
		})
	}
}
