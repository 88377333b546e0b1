package faults

import (
	"database/sql"

	"github.com/jmoiron/sqlx"
)

// Over returns a pool of its own with the driver of pool and the DSN that pool was opened
// with, for processes that have no test to clean up behind them: the caller closes it.
func Over(pool *sqlx.DB, dsn string) *Faults {
	f := &Faults{}
	f.Set(Plan{})
	f.DB = sqlx.NewDb(sql.OpenDB(&connector{faults: f, driver: pool.Driver(), dsn: dsn}), pool.DriverName())
	return f
}
