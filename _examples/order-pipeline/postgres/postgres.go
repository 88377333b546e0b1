// Package postgres opens the services' databases.
package postgres

import (
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"
)

// Open opens a database with the settings that the inbox needs: see docs/databases.md.
func Open(dsn string) (*sqlx.DB, error) {
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	config.RuntimeParams["idle_in_transaction_session_timeout"] = "30000"
	config.RuntimeParams["lock_timeout"] = "10000"
	db := sqlx.NewDb(stdlib.OpenDB(*config), "pgx")
	db.SetMaxOpenConns(20)
	return db, nil
}
