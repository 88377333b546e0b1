// Package error has handlers that drop the errors of statements.
package error

import (
	"context"
	"database/sql"
	"errors"
	"log"
	"log/slog"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgxdb"
)

func drops(msg *message.Message) error {
	ctx := msg.Context()
	tx, err := inbox.Tx(ctx)
	if err != nil {
		return err
	}
	tx.ExecContext(ctx, `DELETE FROM a`)            // want `the error of a statement is dropped.*#swallowed-sql-errors`
	_, _ = tx.ExecContext(ctx, `DELETE FROM a`)     // want `is dropped`
	done, _ := tx.ExecContext(ctx, `DELETE FROM a`) // want `is dropped`
	_ = done
	_ = tx.QueryRowContext(ctx, `SELECT 1`).Scan(new(int)) // want `is dropped`
	_ = tx.GetContext(ctx, new(int), `SELECT 1`)           // want `is dropped`
	_, err = tx.ExecContext(ctx, `DELETE FROM a`)
	return err
}

func succeeds(msg *message.Message) ([]*message.Message, error) {
	ctx := msg.Context()
	tx, err := inbox.Tx(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := tx.ExecContext(ctx, `DELETE FROM a`); err != nil { // want `ends in a success`
		log.Println("never mind", err)
		return nil, nil
	}
	_, err = tx.ExecContext(ctx, `DELETE FROM a`)
	if err != nil { // want `ends in a success`
		return nil, nil
	}
	if err := tx.GetContext(ctx, new(int), `SELECT 1`); err != nil { // want `ends in a success`
		slog.Error("never mind", "err", err)
	}
	return nil, nil
}

func reversed(msg *message.Message) error {
	ctx := msg.Context()
	tx, err := inbox.Tx(ctx)
	if nil != err {
		return err
	}
	if _, err = tx.ExecContext(ctx, `DELETE FROM a`); nil != err { // want `ends in a success`
		return nil
	}
	return nil
}

func decides(msg *message.Message) error {
	ctx := msg.Context()
	tx, err := inbox.Tx(ctx)
	if err != nil {
		return err
	}
	err = tx.GetContext(ctx, new(int), `SELECT 1`)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err != nil {
		log.Println(err)
		return err
	}
	if err := tx.GetContext(ctx, new(int), `SELECT 1`); err != nil {
		if !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		return nil
	}
	if err := tx.GetContext(ctx, new(int), `SELECT 1`); err != nil && !errors.Is(err, sql.ErrNoRows) {
		return nil // who knows
	}
	var failed []error
	if _, err := tx.ExecContext(ctx, `DELETE FROM a`); err != nil {
		failed = append(failed, err)
	}
	_, err = tx.ExecContext(ctx, `DELETE FROM a`)
	if err != nil {
		log.Println(err)
	}
	return errors.Join(append(failed, err)...)
}

func whispers(msg *message.Message) error {
	tx, err := inbox.Tx(msg.Context())
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(msg.Context(), `DELETE FROM a`); err != nil { // want `ends in a success`
		slog.Debug("never mind", "err", err)
	}
	return nil
}

func optional(msg *message.Message) error {
	ctx := msg.Context()
	tx, err := inbox.Tx(ctx)
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, `SAVEPOINT s`); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, `DELETE FROM a`); err != nil {
		log.Println(err)
		_, err := tx.ExecContext(ctx, `ROLLBACK TO SAVEPOINT s`)
		return err
	}
	_, _ = tx.ExecContext(ctx, `RELEASE SAVEPOINT s`)
	return nil
}

func native(msg *message.Message) error {
	tx, err := pgxdb.Tx(msg.Context())
	if err != nil {
		return err
	}
	_, _ = tx.Exec(msg.Context(), `DELETE FROM a`)               // want `is dropped`
	_ = tx.QueryRow(msg.Context(), `SELECT 1`).Scan(new(string)) // want `is dropped`
	return nil
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
	if _, err := inner.Exec(msg.Context(), `DELETE FROM a`); err != nil {
		return inner.Rollback(msg.Context())
	}
	return inner.Commit(msg.Context())
}

// begun is a transaction of the service, which InTx ends.
func begun(ctx context.Context, db *sqlx.DB) error {
	return outbox.InTx(ctx, db, func(ctx context.Context, tx *sqlx.Tx) error {
		_, _ = tx.ExecContext(ctx, `DELETE FROM a`) // want `is dropped`
		return nil
	})
}

// own is a transaction of the function.
func own(ctx context.Context, db *sqlx.DB) error {
	tx, err := db.BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	_, _ = tx.ExecContext(ctx, `DELETE FROM a`)
	return tx.Commit()
}
