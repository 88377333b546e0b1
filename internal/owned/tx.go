// Package owned begins transactions that only their owner ends. If a transaction was lost, writes
// on its connection after that are not committed; a connection whose COMMIT failed is not used
// again.
package owned

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/jmoiron/sqlx"
)

// ErrLost says that the database rolled the transaction back while it was in use.
var ErrLost = errors.New("the database had rolled the transaction back")

// Tx is a transaction. Only the owner calls its Commit and Rollback; on a guarded connection the
// Commit of the embedded transaction fails.
type Tx struct {
	*sqlx.Tx

	ctx   context.Context //nolint:containedctx // that of Begin, which ends the transaction
	conn  *sqlx.Conn
	guard *guard // nil if the database never ends a transaction by itself

	socket net.Conn // nil if the driver ends COMMIT and ROLLBACK with the context

	mu      sync.Mutex // held while the transaction ends
	over    bool
	release func() (stopped bool) // stops watching the contexts; false if one has ended
}

// Begin begins a transaction on db that ends with ctx at the latest. Set guard for SQLite, whose
// drivers continue in autocommit after a statement lost the transaction: until [Tx.Commit] a
// guarded connection commits nothing.
func Begin(ctx context.Context, db *sqlx.DB, options *sql.TxOptions, guard bool) (*Tx, error) {
	for left := -1; ; left-- {
		t, err := beginOnce(ctx, db, options, guard)
		// A pooled connection may have died; database/sql tries another one too.
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

// begin leaves the rollback at the end of the context to database/sql, since some drivers limit
// COMMIT by the context. database/sql then also gives up the connection.
func (t *Tx) begin(ctx context.Context, options *sql.TxOptions) (err error) {
	_ = t.conn.Raw(func(c any) error { // if it fails, BEGIN says why
		t.socket = socketOf(c)
		return nil
	})
	began := time.Now()
	if t.Tx, err = t.conn.BeginTxx(ctx, options); err != nil {
		if waited := time.Since(began); ctx.Err() != nil && waited >= silence {
			return fmt.Errorf("%w BEGIN for %v (%v)", ErrUnanswered, waited.Round(time.Second), err) //nolint:errorlint // the kind of err says less
		}
		return err
	}
	t.release = context.AfterFunc(ctx, t.giveUp)
	return nil
}

// beginGuarded rolls back itself when the context ends, to know when the rollback is done: only
// then can others use the connection.
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
		_ = t.Tx.Rollback() // as at the end of the context
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

// Lost reports whether the database, or somebody other than the owner, has rolled the transaction
// back.
func (t *Tx) Lost() bool { return t.guard != nil && t.guard.lost.Load() }

// Refused reports whether the guard refused to commit writes that came after the transaction was
// lost, or a COMMIT that was not the owner's.
func (t *Tx) Refused() bool { return t.guard != nil && t.guard.refused.Load() }

// Commit commits. After an error nobody uses the connection again, unless it certainly has no open
// transaction.
func (t *Tx) Commit() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return t.done()
	}
	if t.guard != nil && t.ctx.Err() != nil {
		return errors.Join(t.done(), t.rollback())
	}
	if t.guard != nil && !t.guard.open() {
		return errors.Join(ErrLost, t.rollback())
	}
	err := t.Tx.Commit()
	if err == nil && t.guard != nil && !t.guard.asked.Load() {
		t.guard.missed.Store(true)
	}
	t.end(err)
	if errors.Is(err, sql.ErrTxDone) {
		return t.done()
	}
	return err
}

// done says why the transaction has ended already, if it is known.
func (t *Tx) done() error {
	if why := t.ctx.Err(); why != nil {
		return fmt.Errorf("%w: %w", why, sql.ErrTxDone)
	}
	return sql.ErrTxDone
}

// Rollback rolls back. It is not an error if the transaction has ended already.
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
	ended := t.guard == nil && t.Ended()
	err := t.Tx.Rollback()
	if ended { // what ended it may have left locks or settings to the session
		t.discard()
	}
	ended = ended || err != nil && !errors.Is(err, sql.ErrTxDone) && t.Ended() // lib/pq refuses to roll it back
	t.end(err)
	if err == nil || ended || errors.Is(err, sql.ErrTxDone) || lost && notInTransaction(err) {
		return nil
	}
	return fmt.Errorf("roll back: %w", err)
}

// end returns the connection to the pool. After the end of the context the server may take long to
// answer, so the function that watches the context does it then.
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
	_ = t.conn.Close() // it may be closed already
}

// giveUp closes the connection at the end of the context. A server that is silent gets a moment to answer a COMMIT or
// ROLLBACK that it has got: after that a COMMIT is in doubt, and the driver has closed the connection.
func (t *Tx) giveUp() {
	if t.socket != nil {
		_ = t.socket.SetDeadline(time.Now().Add(silence)) // it fails if the connection is closed
	}
	t.discard()
}

// discard closes a connection on which a failed COMMIT, or somebody else, left a transaction open.
// It keeps a connection of SQLite without a transaction, because a database in memory lives in it.
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
	t.raw(func(any) error { return driver.ErrBadConn }) // makes database/sql close the connection
}

// raw calls use with the driver's connection if it still exists. At the end of a context
// database/sql may close the connection at the same moment, and [sql.Conn.Raw] then panics: it
// checks for closing before it takes the lock.
func (t *Tx) raw(use func(driverConn any) error) {
	defer func() {
		if r := recover(); r != nil && t.ctx.Err() == nil {
			panic(r)
		}
	}()
	_ = t.conn.Raw(use) // an error means that the connection is gone
}

// notInTransaction recognises SQLite's answer to a ROLLBACK without a transaction.
func notInTransaction(err error) bool {
	return strings.Contains(err.Error(), "no transaction is active")
}
