// Package context has statements with another context than that of the message.
package context

import (
	"context"
	"database/sql"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgxdb"
)

func handle(msg *message.Message) error {
	tx, err := inbox.Tx(msg.Context())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for _, try := range []func() (sql.Result, error){
		func() (sql.Result, error) { return tx.ExecContext(context.Background(), `SELECT 1`) }, // want `not the context of the message.*#a-statement-without-the-messages-context`
		func() (sql.Result, error) { return tx.Tx.ExecContext(context.TODO(), `SELECT 1`) },    // want `not the context`
		func() (sql.Result, error) { return tx.NamedExecContext(ctx, `SELECT 1`, nil) },        // want `not the context`
		func() (sql.Result, error) { return tx.Exec(`SELECT 1`) },                              // want `without a context.*ExecContext`
	} {
		if _, err := try(); err != nil {
			return err
		}
	}
	if err := store(context.Background(), tx.Tx); err != nil { // want `not the context`
		return err
	}
	derived, stop := context.WithTimeout(msg.Context(), time.Second)
	defer stop()
	_, err = tx.ExecContext(derived, `SELECT 1`)
	return err
}

// store is given a transaction by who knows whom.
func store(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.Exec(`SELECT 1`)
	return err
}

func native(msg *message.Message) error {
	tx, err := pgxdb.Tx(msg.Context())
	if err != nil {
		return err
	}
	_, err = tx.Exec(context.Background(), `SELECT 1`) // want `not the context`
	return err
}

func reassigned(msg *message.Message, live bool) error {
	tx, err := inbox.Tx(msg.Context())
	if err != nil {
		return err
	}
	ctx := context.Background()
	if live {
		ctx = msg.Context()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return tx.GetContext(ctx, new(int), `SELECT 1`)
}

func own(ctx context.Context, db *sqlx.DB) error {
	tx, err := db.BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(`SELECT 1`); err != nil {
		return err
	}
	if err := outbox.InTx(context.Background(), db, func(_ context.Context, tx *sqlx.Tx) error { // no handler
		return tx.Get(new(int), `SELECT 1`) // want `GetContext`
	}); err != nil {
		return err
	}
	return tx.Commit()
}
