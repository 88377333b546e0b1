// Package pool has handlers that write through the pool, and some that do not.
package pool

import (
	"context"
	"database/sql"
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgxdb"
)

type service struct {
	db   *sqlx.DB
	pool *pgxpool.Pool
	*sql.DB
}

func (s *service) handle(msg *message.Message) error {
	ctx := msg.Context()
	if _, err := s.db.ExecContext(ctx, `INSERT INTO early VALUES (1)`); err != nil { // want `through the pool.*#effects-past-the-transaction`
		return err
	}
	tx, err := inbox.Tx(ctx)
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO a VALUES (1)`); err != nil {
		return err
	}
	if _, err := s.db.NamedExecContext(ctx, `UPDATE a SET b = :b`, s); err != nil { // want `through the pool`
		return err
	}
	if _, err := s.ExecContext(ctx, `DELETE FROM a`); err != nil { // want `through the pool`
		return err
	}
	if _, err := sqlx.NamedExecContext(ctx, s.db, `UPDATE a SET b = :b`, s); err != nil { // want `through the pool`
		return err
	}
	if _, err := sqlx.NamedExecContext(ctx, tx, `UPDATE a SET b = :b`, s); err != nil {
		return err
	}
	var id int
	if err := s.db.GetContext(ctx, &id, "\n\tinsert into a VALUES (1) RETURNING id"); err != nil { // want `through the pool`
		return err
	}
	second, err := s.db.BeginTxx(ctx, nil) // want `a second transaction`
	if err != nil {
		return err
	}
	return second.Commit()
}

func (s *service) reads(msg *message.Message) error {
	ctx := msg.Context()
	_, err := inbox.Tx(ctx)
	if err != nil {
		return err
	}
	var n int
	if err := s.db.GetContext(ctx, &n, `SELECT COUNT(*) FROM a WHERE deleted`); err != nil {
		return err
	}
	if _, err := s.db.ExecContext(ctx, `SELECT pg_notify('a', 'b')`); err != nil {
		return err
	}
	other, err := s.db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return err
	}
	if err := other.Rollback(); err != nil {
		return err
	}
	//inboxlint:ignore a counter that may count twice
	if _, err := s.db.ExecContext(ctx, `UPDATE tries SET n = n + 1`); err != nil {
		return err
	}
	return outbox.InTx(ctx, s.db, func(ctx context.Context, tx *sqlx.Tx) error { // joins it
		_, err := tx.ExecContext(ctx, `INSERT INTO a VALUES (?)`, n)
		return err
	})
}

func (s *service) withoutReason(msg *message.Message) error {
	if _, err := inbox.Tx(msg.Context()); err != nil {
		return err
	}
	//inboxlint:ignore
	_, err := s.db.ExecContext(msg.Context(), `UPDATE tries SET n = n + 1`) // want `through the pool`
	return err
}

func (s *service) native(msg *message.Message) error {
	ctx := msg.Context()
	tx, err := pgxdb.Tx(ctx)
	if err != nil {
		return err
	}
	if _, err := s.pool.Exec(ctx, `INSERT INTO a VALUES (1)`); err != nil { // want `through the pool`
		return err
	}
	if _, err := s.pool.CopyFrom(ctx, pgx.Identifier{"a"}, nil, nil); err != nil { // want `through the pool`
		return err
	}
	if err := pgx.BeginFunc(ctx, tx, func(nested pgx.Tx) error { // a savepoint
		_, err := s.pool.Exec(ctx, `DELETE FROM a`) // want `through the pool`
		return err
	}); err != nil {
		return err
	}
	func() {
		_, _ = s.pool.Exec(ctx, `DELETE FROM a`) // want `through the pool`
	}()
	_, err = tx.Conn().Exec(ctx, `INSERT INTO a VALUES (1)`) // the transaction's connection
	return err
}

func (s *service) named(msg *message.Message) (err error) {
	tx, err := inbox.Tx(msg.Context())
	if err != nil {
		return
	}
	if _, err = tx.ExecContext(msg.Context(), `DELETE FROM a`); err == nil {
		_, err = s.db.ExecContext(msg.Context(), `DELETE FROM a`) // want `through the pool`
	}
	return
}

func (s *service) best(msg *message.Message) {
	tx, err := inbox.Tx(msg.Context())
	if err != nil {
		s.db.MustExec(`DELETE FROM a`)
		return
	}
	tx.MustExecContext(msg.Context(), `DELETE FROM a`)
}

// either writes in the transaction of a message, or alone.
func (s *service) either(ctx context.Context) error {
	tx, err := inbox.Tx(ctx)
	if err != nil {
		_, err := s.db.ExecContext(ctx, `INSERT INTO a VALUES (1)`)
		return err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO a VALUES (1)`)
	return err
}

func (s *service) ifThere(ctx context.Context) error {
	if tx, err := inbox.Tx(ctx); err == nil {
		_, err = tx.ExecContext(ctx, `INSERT INTO a VALUES (1)`)
		return err
	}
	_, err := s.db.ExecContext(ctx, `INSERT INTO a VALUES (1)`)
	return err
}

func (s *service) orBegins(ctx context.Context) error {
	tx, err := inbox.Tx(ctx)
	if errors.Is(err, inbox.ErrNoTx) {
		tx, err = s.db.BeginTxx(ctx, nil)
	}
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO a VALUES (1)`)
	return errors.Join(err, tx.Commit())
}

// main has a handler, but is none.
func (s *service) main(router *message.Router, sub message.Subscriber) {
	s.db.MustExec(`CREATE TABLE a (b INTEGER)`)
	router.AddConsumerHandler("a", "b", sub, func(msg *message.Message) error {
		tx, err := inbox.Tx(msg.Context())
		if err != nil {
			return err
		}
		later := func() { s.db.MustExec(`INSERT INTO a VALUES (1)`) } // who knows when
		_ = later
		_, err = tx.ExecContext(msg.Context(), `INSERT INTO a VALUES (1)`)
		return err
	})
	s.db.MustExec(`INSERT INTO a VALUES (1)`)
}

// wired has handlers that forget the transaction.
func (s *service) wired(router *message.Router, store *inbox.Store, sub message.Subscriber) {
	millrace.Inbox{Store: store}.AddTo(router)
	router.AddConsumerHandler("a", "b", sub, s.forgets)
	router.AddConsumerHandler("c", "d", sub, generic[int])
	router.AddHandler("e", "f", sub, "g", nil, message.HandlerFunc(func(msg *message.Message) ([]*message.Message, error) {
		_, err := s.db.ExecContext(msg.Context(), `INSERT INTO a VALUES (1)`) // want `through the pool`
		return nil, err
	}))
	_ = millrace.Batch{Inbox: millrace.Inbox{Store: store}}.ConsumerHandler(s.batch)
}

func (s *service) forgets(msg *message.Message) error {
	_, err := s.db.ExecContext(msg.Context(), `INSERT INTO a VALUES (1)`) // want `through the pool`
	return err
}

var db *sqlx.DB

func generic[T any](msg *message.Message) error {
	_, err := db.ExecContext(msg.Context(), `INSERT INTO a VALUES (1)`) // want `through the pool`
	return err
}

func (s *service) batch(ctx context.Context, msgs []*message.Message) error {
	_, err := s.db.ExecContext(ctx, `INSERT INTO a VALUES (1)`)           // want `through the pool`
	return errors.Join(err, outbox.InTx(context.Background(), s.db, nil)) // want `a second transaction`
}

// other has a router without an inbox, and one whose inbox may not be there.
func (s *service) other(router, maybe *message.Router, store *inbox.Store, sub message.Subscriber, on bool) {
	router.AddConsumerHandler("a", "b", sub, s.alone)
	if on {
		millrace.Inbox{Store: store}.AddTo(maybe)
	}
	maybe.AddConsumerHandler("a", "b", sub, s.alone)
}

func (s *service) alone(msg *message.Message) error {
	_, err := s.db.ExecContext(msg.Context(), `INSERT INTO a VALUES (1)`)
	return err
}
