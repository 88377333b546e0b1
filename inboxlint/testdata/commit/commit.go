// Package commit has handlers that end their transaction.
package commit

import (
	"context"
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgxdb"
)

func handle(msg *message.Message) error {
	ctx := msg.Context()
	tx, err := inbox.Tx(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback() // want `the transaction is ended.*#commit-rollback-or-ddl-in-a-handler`
	inner := tx.Tx
	if err := inner.Commit(); err != nil { // want `is ended by a function`
		return err
	}
	if _, err := tx.ExecContext(ctx, `commit;`); err != nil { // want `is ended, by a statement`
		return err
	}
	if _, err := tx.ExecContext(ctx, `ROLLBACK TO SAVEPOINT s`); err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `ROLLBACK AND CHAIN`) // want `is ended, by a statement`
	return err
}

func nested(msg *message.Message) error {
	tx, err := pgxdb.Tx(msg.Context())
	if err != nil {
		return err
	}
	inner, err := tx.Begin(msg.Context())
	if err != nil {
		return err
	}
	if err := inner.Commit(msg.Context()); err != nil {
		return err
	}
	return tx.Commit(msg.Context()) // want `is ended by a function`
}

// txOf is inbox.Tx by another name.
func txOf(msg *message.Message) (*sqlx.Tx, error) { return inbox.Tx(msg.Context()) }

func wrapped(msg *message.Message) error {
	tx, err := txOf(msg)
	if err != nil {
		return err
	}
	_ = tx.Rollback()  // want `is ended by a function`
	return tx.Commit() // want `is ended by a function`
}

func own(ctx context.Context, db *sqlx.DB) error {
	tx, err := db.BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	return tx.Commit()
}

func either(ctx context.Context, db *sqlx.DB) error {
	tx, err := inbox.Tx(ctx)
	own := errors.Is(err, inbox.ErrNoTx)
	if own {
		tx, err = db.BeginTxx(ctx, nil)
	}
	if err != nil {
		return err
	}
	if own {
		return tx.Commit()
	}
	return nil
}

func begun(ctx context.Context, db *sqlx.DB) error {
	return outbox.InTx(ctx, db, func(ctx context.Context, tx *sqlx.Tx) error {
		return tx.Commit() // want `is ended by a function`
	})
}

var in = millrace.Inbox{Options: inbox.Options{OnBegin: func(ctx context.Context, tx *sqlx.Tx, msg *message.Message) error {
	return tx.Rollback() // want `is ended by a function`
}}}
