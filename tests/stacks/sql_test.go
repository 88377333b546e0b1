package stacks_test

import (
	"context"
	"database/sql"

	"github.com/Masterminds/squirrel"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
)

// store writes with database/sql alone.
func store(ctx context.Context, tx *sql.Tx, o order) error {
	if _, err := tx.ExecContext(ctx, `INSERT INTO orders (id, amount) VALUES ($1, $2)`, o.ID, o.Amount); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, `UPDATE accounts SET balance = balance + $1 WHERE id = 'shop'`, o.Amount)
	return err
}

func withDatabaseSQL(msg *message.Message) error {
	o, err := read(msg)
	if err != nil {
		return err
	}
	tx, err := inbox.Tx(msg.Context())
	if err != nil {
		return err
	}
	return store(msg.Context(), tx.Tx, o) // tx.Tx is the *sql.Tx
}

func withSqlx(msg *message.Message) error {
	o, err := read(msg)
	if err != nil {
		return err
	}
	tx, err := inbox.Tx(msg.Context())
	if err != nil {
		return err
	}
	if _, err := tx.NamedExecContext(msg.Context(), `INSERT INTO orders (id, amount) VALUES (:id, :amount)`, o); err != nil {
		return err
	}
	_, err = tx.NamedExecContext(msg.Context(), `UPDATE accounts SET balance = balance + :amount WHERE id = 'shop'`, o)
	return err
}

func withSquirrel(msg *message.Message) error {
	o, err := read(msg)
	if err != nil {
		return err
	}
	tx, err := inbox.Tx(msg.Context())
	if err != nil {
		return err
	}
	build := squirrel.StatementBuilder.PlaceholderFormat(squirrel.Dollar).RunWith(tx.Tx)
	_, err = build.Insert("orders").Columns("id", "amount").Values(o.ID, o.Amount).ExecContext(msg.Context())
	if err != nil {
		return err
	}
	_, err = build.Update("accounts").Set("balance", squirrel.Expr("balance + ?", o.Amount)).Where(squirrel.Eq{"id": "shop"}).
		ExecContext(msg.Context())
	return err
}
