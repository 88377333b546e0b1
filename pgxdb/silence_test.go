package pgxdb_test

import (
	"context"
	"net"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/tests/same"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestASilentServerIsNoTwin(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "postgres")
	same.Silence(t, func(dial func(ctx context.Context, network, address string) (net.Conn, error)) *sqlx.DB {
		return newPool(t, db, func(c *pgx.ConnConfig) { c.DialFunc = dial })
	})
}
