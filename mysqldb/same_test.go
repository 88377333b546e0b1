package mysqldb_test

import (
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/same"
	"github.com/millrace-go/millrace/tests/testdb"
)

// FuzzSameAsMySQL: where nothing of Millrace's is sent, this driver is the same as go-sql-driver/mysql.
func FuzzSameAsMySQL(f *testing.F) {
	db := testdb.On(f, "mysql")
	var pools [2]*sqlx.DB
	for i, driver := range []string{"mysql", "mysqldb"} {
		pool, err := sqlx.Open(driver, saving(f, db))
		require.NoError(f, err)
		pool.SetMaxOpenConns(1)
		f.Cleanup(func() { require.NoError(f, pool.Close()) })
		pools[i] = pool
	}
	same.Fuzz(f, pools, func(error) bool { return false }) // an error leaves the transaction open
}
