package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/ambient"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/writers"
)

// Tx is a transaction of the service: a *sqlx.Tx, a *sql.Tx, or what wraps one. A pool is
// none.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	Commit() error
	Rollback() error
}

type foreignKey struct{}

// foreign is a transaction that somebody else ends.
type foreign struct {
	tx    Tx
	outer *ambient.Tx // which the context carried before
}

// WithTx returns a context by which messages are stored in tx, which the caller began and
// ends: of an HTTP handler, for instance. Call [Publisher.Wake] after the commit to have
// the messages sent at once; else a relay finds them when it next looks.
func WithTx(ctx context.Context, tx Tx) context.Context {
	return context.WithValue(ctx, foreignKey{}, &foreign{tx: tx, outer: ambient.From(ctx)})
}

// InTx runs work in a transaction on db and commits it; an error or a panic rolls back.
// Messages published with the context that work is given are stored in the transaction,
// and relays on db are woken after the commit. Where ctx carries a transaction on db
// already, work runs in that one, and whoever began it ends it.
func InTx(ctx context.Context, db *sqlx.DB, work func(ctx context.Context, tx *sqlx.Tx) error) error {
	if tx, live := ambient.From(ctx).Live(db); live {
		return work(ctx, tx)
	}
	leave, err := enterWriters(ctx, db)
	if err != nil {
		return fmt.Errorf("outbox: begin: %w", err)
	}
	defer leave()
	tx, err := db.BeginTxx(ctx, nil)
	if err != nil {
		return fmt.Errorf("outbox: begin: %w", explain(err))
	}
	own := ambient.New(tx, db)
	defer func() {
		own.End()
		_ = tx.Rollback() // for a panic; else it has ended
	}()
	if err := work(ambient.With(ctx, own), tx); err != nil {
		own.End()
		return errors.Join(err, rollback(tx))
	}
	own.End()
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("outbox: commit: %w", explain(err))
	}
	own.Committed()
	return nil
}

// enterWriters waits for the turn to write where writers exclude each other.
func enterWriters(ctx context.Context, db *sqlx.DB) (leave func(), err error) {
	name, err := dialect.Detect(ctx, db)
	if err != nil {
		return nil, err
	}
	if name != dialect.SQLiteName {
		return func() {}, nil
	}
	return writers.Of(db.DB).Enter(ctx)
}

func rollback(tx *sqlx.Tx) error {
	if err := tx.Rollback(); err != nil && !errors.Is(err, sql.ErrTxDone) {
		return fmt.Errorf("roll back: %w", err)
	}
	return nil
}

// destination is where the messages of one call are stored.
type destination struct {
	tx    Tx          // nil where there is none
	owner *ambient.Tx // nil where somebody else commits
	alone bool        // in a transaction of their own
}

// destinationOf returns the transaction that all msgs carry in their contexts.
func destinationOf(msgs []*message.Message) (destination, error) {
	first, err := destinationIn(msgs[0].Context())
	for _, m := range msgs[1:] {
		if err != nil {
			break
		}
		var other destination
		if other, err = destinationIn(m.Context()); err == nil && other != first {
			return first, fmt.Errorf("message %q: its context carries another transaction than that of message %q: "+
				"publish them in calls of their own", m.UUID, msgs[0].UUID)
		}
	}
	return first, err
}

func destinationIn(ctx context.Context) (destination, error) {
	own := ambient.From(ctx)
	if f, ok := ctx.Value(foreignKey{}).(*foreign); ok && f.outer == own {
		return destination{tx: f.tx}, nil
	}
	if own == nil {
		return destination{}, nil
	}
	tx, live := own.Take()
	if !live {
		return destination{}, ErrTxEnded
	}
	return destination{tx: tx, owner: own}, nil
}
