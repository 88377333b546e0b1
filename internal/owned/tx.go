// Package owned begins transactions that only their owner ends: what others write on the
// connection after the transaction was lost does not stay, and a connection whose COMMIT
// failed is not used again.
package owned

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jmoiron/sqlx"
)

// ErrLost says that the database rolled the transaction back while it was in use.
var ErrLost = errors.New("the database had rolled the transaction back")

// Tx is a transaction. Its Commit and Rollback are the owner's; on a guarded connection
// the Commit of the embedded transaction is refused.
type Tx struct {
	*sqlx.Tx

	ctx   context.Context //nolint:containedctx // that of Begin, which ends the transaction
	conn  *sqlx.Conn
	guard *guard // nil where the database keeps a transaction until it is ended

	mu      sync.Mutex // held while the transaction is ended
	over    bool
	release func() (stopped bool) // of the contexts; false where the context has ended
}

// Begin begins a transaction on db that ends with ctx at the latest. Guard is for SQLite,
// whose driver goes on in autocommit where a statement lost the transaction: from here to
// [Tx.Commit] nothing is committed.
func Begin(ctx context.Context, db *sqlx.DB, options *sql.TxOptions, guard bool) (*Tx, error) {
	for left := -1; ; left-- {
		t, err := beginOnce(ctx, db, options, guard)
		// A pooled connection may have died since; database/sql takes another one then as well.
		if err == nil || !errors.Is(err, driver.ErrBadConn) || left == 0 || ctx.Err() != nil {
			return t, err
		}
		if left < 0 {
			left = db.Stats().OpenConnections + 2 // any of them may have died
		}
	}
}

func beginOnce(ctx context.Context, db *sqlx.DB, options *sql.TxOptions, guard bool) (*Tx, error) {
	conn, err := db.Connx(ctx)
	if err != nil {
		return nil, err
	}
	t := &Tx{ctx: ctx, conn: conn}
	if guard {
		err = t.beginGuarded(ctx, options)
	} else {
		err = t.begin(ctx, options)
	}
	if err != nil {
		_ = conn.Close() // the error of BEGIN says more
		return nil, err
	}
	return t, nil
}

// begin leaves it to database/sql to roll back when the context ends: some drivers bound
// COMMIT by it. The connection is given up then, whatever the user of t does.
func (t *Tx) begin(ctx context.Context, options *sql.TxOptions) (err error) {
	if t.Tx, err = t.conn.BeginTxx(ctx, options); err != nil {
		return err
	}
	t.release = context.AfterFunc(ctx, t.discard)
	return nil
}

// beginGuarded rolls back by itself when the context ends, to know when that is done: only
// then the connection is free for others.
func (t *Tx) beginGuarded(ctx context.Context, options *sql.TxOptions) (err error) {
	err = t.conn.Raw(func(c any) (err error) {
		t.guard, err = guardOf(c)
		return err
	})
	if err != nil {
		return err
	}
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel) // BEGIN waits for the writer of another process
	t.Tx, err = t.conn.BeginTxx(own, options)
	if err == nil && !stop() {
		_ = t.Tx.Rollback() // as the context's end does
		err = ctx.Err()
	}
	if err != nil {
		stop()
		cancel()
		return err
	}
	t.guard.shut()
	t.mu.Lock() // the context may end at once
	defer t.mu.Unlock()
	stop = context.AfterFunc(ctx, func() { _ = t.Rollback() })
	t.release = func() bool { cancel(); return stop() }
	return nil
}

// Guarded returns [ErrNoHook] unless a connection of db can be guarded.
func Guarded(ctx context.Context, db *sqlx.DB) error {
	conn, err := db.Connx(ctx)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // goes back to the pool
	return conn.Raw(func(c any) error {
		_, err := guardOf(c)
		return err
	})
}

// Lost reports whether the database has rolled the transaction back, or somebody else did,
// since nobody commits or rolls back but the owner.
func (t *Tx) Lost() bool { return t.guard != nil && t.guard.lost.Load() }

// Refused reports whether something was not committed that was written after the
// transaction was lost, or by a COMMIT that was not the owner's.
func (t *Tx) Refused() bool { return t.guard != nil && t.guard.refused.Load() }

// Commit commits. After an error the connection is not used again, unless it is certain
// that it holds no transaction.
func (t *Tx) Commit() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return sql.ErrTxDone
	}
	if t.guard != nil && t.ctx.Err() != nil {
		return errors.Join(sql.ErrTxDone, t.ctx.Err(), t.rollback())
	}
	if t.guard != nil && !t.guard.open() {
		return errors.Join(ErrLost, t.rollback())
	}
	err := t.Tx.Commit()
	if err == nil && t.guard != nil && !t.guard.asked.Load() {
		t.guard.missed.Store(true)
	}
	t.end(err)
	return err
}

// Rollback rolls back. That the transaction had ended already is no error.
func (t *Tx) Rollback() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return nil
	}
	return t.rollback()
}

func (t *Tx) rollback() error {
	lost := t.Lost()
	if t.guard != nil {
		t.guard.close()
	}
	err := t.Tx.Rollback()
	ended := err != nil && !errors.Is(err, sql.ErrTxDone) && t.Ended() // which lib/pq refuses to roll back
	t.end(err)
	if err == nil || ended || errors.Is(err, sql.ErrTxDone) || lost && notInTransaction(err) {
		return nil
	}
	return fmt.Errorf("roll back: %w", err)
}

// end gives the connection back. Where the context ended, it can take long before the
// server answers, so that is left to the function that waits for the context.
func (t *Tx) end(err error) {
	t.over = true
	if t.guard == nil && (t.ctx.Err() != nil || !t.release()) {
		return
	}
	if err != nil {
		t.discard()
	}
	if t.guard != nil {
		t.guard.idle()
		t.release()
	}
	_ = t.conn.Close() // that it was closed already is no matter
}

// discard sees to it that a transaction which a failed COMMIT, or somebody else, left open is
// not found by the next user of the connection. A database in memory lives in its connection, so SQLite's is
// kept where it holds none.
//
//nolint:contextcheck // a transaction ends outside of any call's context
func (t *Tx) discard() {
	const patience = 5 * time.Second
	if t.guard != nil {
		t.guard.close()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), patience)
		defer cancel()
		if _, err := t.conn.ExecContext(ctx, "ROLLBACK"); err == nil || notInTransaction(err) {
			return
		}
	}
	t.raw(func(any) error { return driver.ErrBadConn }) // has database/sql close it
}

// raw calls use with the driver's connection, unless that is gone. At the end of a context database/sql may close
// it at the same moment, and then [sql.Conn.Raw] panics: it looks whether the connection is closed before it locks it.
func (t *Tx) raw(use func(driverConn any) error) {
	defer func() {
		if r := recover(); r != nil && t.ctx.Err() == nil {
			panic(r)
		}
	}()
	_ = t.conn.Raw(use) // its error says that the connection is gone
}

// notInTransaction recognises SQLite's answer to a ROLLBACK without a transaction.
func notInTransaction(err error) bool {
	return strings.Contains(err.Error(), "no transaction is active")
}
