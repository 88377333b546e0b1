package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/pubsub/watermillsql"
)

// tables are the bank's own, beside which those of inbox and outbox lie.
const tables = `
	CREATE TABLE account   (id INTEGER PRIMARY KEY, balance BIGINT NOT NULL, payments INTEGER NOT NULL);
	CREATE TABLE statement (account INTEGER PRIMARY KEY, total BIGINT NOT NULL, receipts INTEGER NOT NULL);
	INSERT INTO account    SELECT id, 0, 0 FROM generate_series(0, 49) AS id;
	INSERT INTO statement  SELECT id, 0, 0 FROM generate_series(0, 49) AS id;`

const accounts = 50

// databases are the bank's, and the one that serves as its message broker.
type databases struct{ accounts, topics *sqlx.DB }

// openDatabases opens the two databases whose names begin with name, on the server of dsn.
func openDatabases(dsn, name string) (*databases, error) {
	accounts, err := openDatabase(dsn, name+"_accounts")
	if err != nil {
		return nil, err
	}
	topics, err := openDatabase(dsn, name+"_topics")
	return &databases{accounts, topics}, err
}

// openDatabase opens one with the settings that the inbox needs: see docs/databases.md.
func openDatabase(dsn, name string) (*sqlx.DB, error) {
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	if name != "" {
		config.Database = name
	}
	config.RuntimeParams["idle_in_transaction_session_timeout"] = "30000"
	config.RuntimeParams["lock_timeout"] = "10000"
	db := sqlx.NewDb(stdlib.OpenDB(*config), "pgx")
	db.SetMaxOpenConns(10)
	return db, nil
}

func (d *databases) close() error { return errors.Join(d.accounts.Close(), d.topics.Close()) }

// migrate makes all tables: the bank's, those of inbox and outbox, and those of the topics.
func (d *databases) migrate(ctx context.Context) error {
	if _, err := d.accounts.ExecContext(ctx, tables); err != nil {
		return err
	}
	store, err := inbox.NewStore(d.accounts, inbox.Config{})
	if err != nil {
		return err
	}
	if err := store.Migrate(ctx); err != nil {
		return err
	}
	publisher, err := watermillsql.NewPublisher(d.topics, watermillsql.Config{})
	if err != nil {
		return err
	}
	return publisher.Initialize(ctx, "payments", "receipts")
}

// withDatabases makes two databases for work, and drops them.
func withDatabases(ctx context.Context, dsn string, work func(name string, d *databases) error) (err error) {
	server, err := openDatabase(dsn, "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	name := fmt.Sprintf("millrace_example_%d", os.Getpid())
	for _, database := range []string{name + "_accounts", name + "_topics"} {
		if _, err := server.ExecContext(ctx, `CREATE DATABASE `+database); err != nil {
			return err
		}
		defer func() {
			_, dropped := server.Exec(`DROP DATABASE ` + database + ` WITH (FORCE)`)
			err = errors.Join(err, dropped)
		}()
	}
	d, err := openDatabases(dsn, name)
	if err != nil {
		return err
	}
	return errors.Join(work(name, d), d.close())
}
