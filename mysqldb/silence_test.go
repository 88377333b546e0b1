package mysqldb_test

import (
	"context"
	"net"
	"testing"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/tests/same"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestASilentServerIsNoTwin(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "mysql")
	same.Silence(t, func(dial func(ctx context.Context, network, address string) (net.Conn, error)) *sqlx.DB {
		c := config(t, db)
		c.DialFunc = dial
		return newPool(t, c)
	})
}
