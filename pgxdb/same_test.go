package pgxdb_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/same"
	"github.com/millrace-go/millrace/tests/testdb"
)

// FuzzSameAsPgx: where nothing of Millrace's is sent, this driver is the same as pgx's.
func FuzzSameAsPgx(f *testing.F) {
	db := testdb.On(f, "postgres")
	var pools [2]*sqlx.DB
	for i, driver := range []string{"pgx", "pgxdb"} {
		pool, err := sqlx.Open(driver, db.DSN)
		require.NoError(f, err)
		pool.SetMaxOpenConns(1)
		f.Cleanup(func() { require.NoError(f, pool.Close()) })
		pools[i] = pool
	}
	same.Fuzz(f, pools, func(err error) bool {
		var answer *pgconn.PgError
		return errors.As(err, &answer)
	})
}
