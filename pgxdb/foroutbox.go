package pgxdb

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/outbox"
)

// ForOutbox returns tx for outbox.WithTx, so that messages are stored in a transaction that the service began with pgx
// and ends itself:
//
//	ctx := outbox.WithTx(ctx, pgxdb.ForOutbox(tx))
//	err := publisher.Publish("orders", message.NewMessageWithContext(ctx, watermill.NewUUID(), payload))
//
// After the commit call Wake on the Publisher.
func ForOutbox(tx pgx.Tx) outbox.Tx {
	if tx == nil {
		return nil
	}
	return given{tx}
}

// given is a transaction of pgx as one for the outbox.
type given struct{ tx pgx.Tx }

func (g given) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	tag, err := g.tx.Exec(ctx, query, args...)
	if errors.Is(err, pgx.ErrTxClosed) {
		return nil, sql.ErrTxDone
	}
	if err != nil {
		return nil, err
	}
	return driver.RowsAffected(tag.RowsAffected()), nil
}

func (g given) Commit() error   { return ErrOwned }
func (g given) Rollback() error { return ErrOwned }
