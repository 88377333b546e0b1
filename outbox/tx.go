package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/ambient"
	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/flight"
	"github.com/millrace-go/millrace/internal/owned"
	"github.com/millrace-go/millrace/internal/writers"
)

// Tx is a transaction of the service: a *sqlx.Tx, a *sql.Tx, or a wrapper of one. A pool is
// not a Tx.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	Commit() error
	Rollback() error
}

type foreignKey struct{}

// foreign is a transaction that somebody else ends.
type foreign struct {
	tx     Tx
	outer  *ambient.Tx // the one that the context carried before
	saving sync.Mutex
	guard  atomic.Int32 // for [Publisher.guardFor]
}

// WithTx returns a context with which messages are stored in tx, which the caller began and
// ends: in an HTTP handler, for instance. Call [Publisher.Wake] after the commit to have the
// messages sent at once; else a relay finds them when it next looks. Where several goroutines
// publish in tx, call WithTx once and give them all its context.
func WithTx(ctx context.Context, tx Tx) context.Context {
	if v := reflect.ValueOf(tx); v.Kind() == reflect.Pointer && v.IsNil() {
		tx = nil
	}
	return context.WithValue(ctx, foreignKey{}, &foreign{tx: tx, outer: ambient.From(ctx)})
}

// foreignIn returns what [WithTx] put into ctx, nil if a later transaction hides it.
func foreignIn(ctx context.Context) *foreign {
	f, _ := ctx.Value(foreignKey{}).(*foreign)
	if f == nil || f.outer != ambient.From(ctx) {
		return nil
	}
	return f
}

// InTx runs work in a transaction on db and commits it; an error or a panic rolls it back.
// Messages published with work's context are stored in the transaction, and the commit wakes
// relays on db.
//
// Where ctx already carries a transaction on db, of inbox.Tx, InTx or [WithTx], work runs in
// that one, and whoever began it ends it. InTx can pass only a *sqlx.Tx to work: it returns an
// error for a *sql.Tx on db, and begins another transaction beside a wrapper, of which it
// cannot tell whether it is on db.
func InTx(ctx context.Context, db *sqlx.DB, work func(ctx context.Context, tx *sqlx.Tx) error) error {
	joined, tx, err := join(ctx, db)
	if err != nil {
		return err
	}
	if tx != nil {
		return work(joined, tx)
	}
	leave, err := writers.Known(db.DB).Enter(ctx)
	if err != nil {
		return fmt.Errorf("outbox: begin: %w", err)
	}
	leave = sync.OnceFunc(leave)
	defer leave()
	return begin(ctx, db, leave, work)
}

// begin runs work in a transaction of its own. It leaves the turn to write before it calls what
// follows the commit, as that may write too.
func begin(
	ctx context.Context, db *sqlx.DB, leave func(), work func(ctx context.Context, tx *sqlx.Tx) error,
) error {
	tx, err := owned.Begin(ctx, db, nil, writers.Known(db.DB) != nil)
	if err != nil {
		return fmt.Errorf("outbox: begin: %w", database.Explain(err))
	}
	own := ambient.New(tx.Tx, db)
	own.Ended = tx.Ended
	defer func() {
		own.End()
		_ = tx.Rollback() // for a panic; else it has ended
	}()
	if err := work(ambient.With(ctx, own), tx.Tx); err != nil {
		own.End()
		return errors.Join(err, tx.Rollback())
	}
	own.End()
	if err := tx.Commit(); err != nil {
		if errors.Is(err, sql.ErrTxDone) && ctx.Err() != nil {
			err = ctx.Err() // the end of ctx rolled it back
		}
		if flight.Failed(err) && dialect.Classify(err) == dialect.NoTransaction {
			return ErrTxEnded // found out by a message that was sent with COMMIT
		}
		return fmt.Errorf("outbox: commit: %w", database.Explain(dialect.Unhide(err)))
	}
	leave()
	own.Committed()
	return nil
}

// join returns the transaction on db that ctx carries, nil if there is none, and a context
// in which it is the innermost.
func join(ctx context.Context, db *sqlx.DB) (context.Context, *sqlx.Tx, error) {
	if f := foreignIn(ctx); f != nil {
		switch tx := f.tx.(type) {
		case *sqlx.Tx:
			if isOn(tx.Tx, db) {
				return ctx, tx, nil
			}
		case *sql.Tx:
			if isOn(tx, db) {
				return ctx, nil, errors.New("outbox: InTx cannot join the *sql.Tx in its context, " +
					"and must not begin another transaction beside it: give WithTx a *sqlx.Tx")
			}
		}
	}
	own := ambient.From(ctx)
	if _, live := own.Live(db); !live {
		return ctx, nil, nil
	}
	tx, live := own.Take()
	if !live {
		return ctx, nil, nil
	}
	return context.WithValue(ctx, foreignKey{}, (*foreign)(nil)), tx, nil
}

// isOn reports whether tx was begun on db. Only an unexported field says so.
func isOn(tx *sql.Tx, db *sqlx.DB) bool {
	pool := reflect.ValueOf(tx).Elem().FieldByName("db")
	return pool.Kind() == reflect.Pointer && pool.Pointer() == reflect.ValueOf(db.DB).Pointer()
}

// destination is where the messages of one call are stored.
type destination struct {
	tx     Tx          // nil where there is none
	owner  *ambient.Tx // nil where somebody else commits
	given  *foreign    // nil unless it came by WithTx
	alone  bool        // in a transaction of their own
	saving *sync.Mutex // held while our savepoint is set: a second one would replace it
}

// same reports whether d and other are one transaction. A wrapper may be of a type that cannot
// be compared.
func (d destination) same(other destination) bool {
	if !d.owner.Same(other.owner) || (d.given == nil) != (other.given == nil) {
		return false
	}
	return d.given == other.given || reflect.ValueOf(d.tx).Comparable() &&
		reflect.ValueOf(other.tx).Comparable() && d.tx == other.tx
}

// destinationOf returns the transaction that all msgs carry in their contexts.
func destinationOf(msgs []*message.Message) (destination, error) {
	first, err := destinationIn(msgs[0])
	for _, m := range msgs[1:] {
		if err != nil {
			break
		}
		var other destination
		if other, err = destinationIn(m); err == nil && !other.same(first) {
			return first, differ(msgs[0], first, m, other)
		}
	}
	return first, err
}

// differ returns the error for two messages of a call that do not carry the same transaction.
func differ(a *message.Message, aTx destination, b *message.Message, bTx destination) error {
	if bTx.tx != nil && aTx.tx != nil {
		return fmt.Errorf("messages %q and %q carry different transactions in their contexts: "+
			"publish them in separate calls", a.UUID, b.UUID)
	}
	if aTx.tx == nil {
		a, b = b, a
	}
	return fmt.Errorf("message %q, unlike message %q: %w", b.UUID, a.UUID, ErrNoTx)
}

func destinationIn(m *message.Message) (destination, error) {
	ctx := m.Context()
	if f := foreignIn(ctx); f != nil {
		if f.tx == nil {
			return destination{}, fmt.Errorf("message %q: WithTx was given nil: %w", m.UUID, ErrNoTx)
		}
		return destination{tx: f.tx, given: f, saving: &f.saving}, nil
	}
	own := ambient.From(ctx)
	if own == nil {
		return destination{}, nil
	}
	tx, live := own.Take()
	if !live {
		return destination{}, fmt.Errorf("message %q: %w", m.UUID, ErrTxEnded)
	}
	if own.Lent() {
		return destination{}, fmt.Errorf("message %q: %w", m.UUID, ambient.ErrBusy)
	}
	return destination{tx: tx, owner: own, saving: &own.Saving}, nil
}
