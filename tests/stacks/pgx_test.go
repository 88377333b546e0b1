package stacks_test

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace-go/millrace/pgxdb"
)

func withPgx(msg *message.Message) error {
	o, err := read(msg)
	if err != nil {
		return err
	}
	tx, err := pgxdb.Tx(msg.Context())
	if err != nil {
		return err
	}
	if _, err := tx.CopyFrom(msg.Context(), pgx.Identifier{"orders"}, []string{"id", "amount"}, pgx.CopyFromRows([][]any{{o.ID, o.Amount}})); err != nil {
		return err
	}
	_, err = tx.Exec(msg.Context(), `UPDATE accounts SET balance = balance + $1 WHERE id = 'shop'`, o.Amount)
	return err
}

// queries is what sqlc generates with sql_package: pgx/v5, for the two statements.
type queries struct{ db dbtx }

type dbtx interface {
	Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, query string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, query string, args ...any) pgx.Row
}

func newQueries(db dbtx) *queries { return &queries{db} }

func (q *queries) InsertOrder(ctx context.Context, id string, amount int64) error {
	_, err := q.db.Exec(ctx, `INSERT INTO orders (id, amount) VALUES ($1, $2)`, id, amount)
	return err
}

func (q *queries) AddToAccount(ctx context.Context, amount int64) error {
	_, err := q.db.Exec(ctx, `UPDATE accounts SET balance = balance + $1 WHERE id = 'shop'`, amount)
	return err
}

func withSqlc(msg *message.Message) error {
	o, err := read(msg)
	if err != nil {
		return err
	}
	tx, err := pgxdb.Tx(msg.Context())
	if err != nil {
		return err
	}
	q := newQueries(tx) // with database/sql instead of pgx/v5: the tx of inbox.Tx
	if err := q.InsertOrder(msg.Context(), o.ID, o.Amount); err != nil {
		return err
	}
	return q.AddToAccount(msg.Context(), o.Amount)
}
