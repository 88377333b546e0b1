package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/ambient"
	"github.com/millrace-go/millrace/internal/dialect"
)

// MaxTries is how often we retry a statement of our own after a deadlock, a serialization failure
// or a lock wait.
const MaxTries = 20

// Write runs work in a short transaction of its own, and retries it after a deadlock. In a
// handler's context it runs work in the handler's transaction and never waits for a second
// connection. The first statement of work must write.
func (db *DB) Write(ctx context.Context, work func(tx *sqlx.Tx) error) error {
	if tx, live := db.Live(ctx); live {
		return work(tx)
	}
	return db.again(ctx, func() error {
		leave, err := db.Enter(ctx)
		if err != nil {
			return err
		}
		defer leave()
		return db.transact(ctx, work)
	})
}

// WriteInTurn is [DB.Write] for a caller that has the writer's turn. It does not use the handler's
// transaction.
func (db *DB) WriteInTurn(ctx context.Context, work func(tx *sqlx.Tx) error) error {
	return db.again(ctx, func() error { return db.transact(ctx, work) })
}

// WriteFound is [DB.Write] in a transaction of its own, with a context in which the inbox and the
// outbox find the transaction. It gives up the writer's turn before the functions that follow the
// commit, since they may write.
func (db *DB) WriteFound(ctx context.Context, work func(ctx context.Context, tx *sqlx.Tx) error) error {
	return db.again(ctx, func() error {
		leave, err := db.Enter(ctx)
		if err != nil {
			return err
		}
		leave = sync.OnceFunc(leave)
		defer leave()
		var own *ambient.Tx
		err = db.transact(ctx, func(tx *sqlx.Tx) error {
			own = ambient.New(tx, db.DB)
			defer own.End()
			return work(ambient.With(ctx, own), tx)
		})
		if err != nil {
			return err
		}
		leave()
		own.Committed()
		return nil
	})
}

// Exec runs one statement, retries it after a deadlock, and returns how many rows it changed.
func (db *DB) Exec(ctx context.Context, query string, args ...any) (changed int64, err error) {
	err = db.again(ctx, func() error {
		leave, err := db.Enter(ctx)
		if err != nil {
			return err
		}
		defer leave()
		changed, err = Affected(db.ExecContext(ctx, query, args...))
		return err
	})
	return changed, err
}

// Affected returns how many rows a statement changed.
func Affected(result sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func (db *DB) transact(ctx context.Context, work func(tx *sqlx.Tx) error) error {
	tx, err := db.Begin(ctx)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // after a panic; otherwise it has ended
	if err := work(tx.Tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// again repeats work while it meets contention.
func (db *DB) again(ctx context.Context, work func() error) error {
	for try := 0; ; try++ {
		err := work()
		if dialect.Classify(err) != dialect.Contention || try == MaxTries {
			return db.Noticed(err)
		}
		if ended := Pause(ctx, try); ended != nil {
			return fmt.Errorf("%w, while it was tried again after: %v", ended, err) //nolint:errorlint // the context is to blame, not the database
		}
	}
}

// Pause waits for a short random time that grows with try. It returns ctx's error if ctx ends
// first.
func Pause(ctx context.Context, try int) error {
	longest := time.Millisecond << min(try, 7)
	timer := time.NewTimer(rand.N(longest)) //nolint:gosec // jitter needs no secrecy
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
