package demo

import (
	"context"
	"errors"
	"net/url"

	"github.com/jmoiron/sqlx"

	"order-pipeline/postgres"
)

// database is one that the demo makes and drops.
type database struct {
	*sqlx.DB
	dsn  string
	drop func() error
}

// createDatabase makes a database on the server of dsn, which must be a URL.
func createDatabase(ctx context.Context, dsn, name string) (*database, error) {
	where, err := url.Parse(dsn)
	if err != nil {
		return nil, err
	}
	server, err := postgres.Open(dsn)
	if err != nil {
		return nil, err
	}
	if _, err := server.ExecContext(ctx, `CREATE DATABASE `+name); err != nil {
		return nil, errors.Join(err, server.Close())
	}
	where.Path = "/" + name
	db, err := postgres.Open(where.String())
	return &database{DB: db, dsn: where.String(), drop: func() error {
		closed := db.Close()
		_, dropped := server.Exec(`DROP DATABASE ` + name + ` WITH (FORCE)`)
		return errors.Join(closed, dropped, server.Close())
	}}, err
}
