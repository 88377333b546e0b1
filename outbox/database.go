package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/bell"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/owned"
	"github.com/millrace-go/millrace/internal/writers"
)

// database is where the outbox lies.
type database struct {
	db      *sqlx.DB
	dialect *dialect.Dialect
	sql     *dialect.Outbox
	bell    *bell.Bell
	writers writers.Queue // nil where writers do not exclude each other

	// A transaction left open by a relay that froze must not lock gaps between rows: nobody
	// could store any more.
	isolation *sql.TxOptions
}

func openDatabase(db *sqlx.DB, name string, names dialect.Names) (*database, error) {
	if db == nil {
		return nil, errors.New("outbox: a *sqlx.DB is required")
	}
	d, err := dialect.Of(db, name, names)
	if err != nil {
		return nil, fmt.Errorf("outbox: %w", err)
	}
	database := &database{db: db, dialect: d, sql: &d.Outbox, bell: bell.Of(db.DB)}
	if d.OneWriter {
		database.writers = writers.Of(db.DB)
	} else {
		database.isolation = &sql.TxOptions{Isolation: sql.LevelReadCommitted}
	}
	return database, nil
}

// migrate is what inbox.Store.Migrate does: there is one schema.
func (d *database) migrate(ctx context.Context) error {
	return d.alone(ctx, func() error { return d.dialect.Migrate(ctx, d.db) })
}

// alone runs work in the writer's turn, where there is one.
func (d *database) alone(ctx context.Context, work func() error) error {
	if d.writers == nil {
		return work()
	}
	leave, err := d.writers.Enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	return work()
}

// exec runs a statement by itself, again after a deadlock, and returns how many rows it
// changed.
func (d *database) exec(ctx context.Context, query string, args ...any) (n int64, err error) {
	err = d.patiently(ctx, func() error {
		n, err = affected(d.db.ExecContext(ctx, query, args...))
		return err
	})
	return n, err
}

// write runs work in a transaction of its own, again after a deadlock. The first statement
// of work must write.
func (d *database) write(ctx context.Context, work func(tx *sqlx.Tx) error) error {
	return d.patiently(ctx, func() error {
		tx, err := owned.Begin(ctx, d.db, d.isolation, d.writers != nil)
		if err != nil {
			return fmt.Errorf("begin: %w", err)
		}
		defer func() { _ = tx.Rollback() }() // for a panic; else it has ended
		if err := work(tx.Tx); err != nil {
			return errors.Join(err, tx.Rollback())
		}
		if err := tx.Commit(); err != nil {
			return fmt.Errorf("commit: %w", err)
		}
		return nil
	})
}

// patiently tries work again after a deadlock, a serialization failure or a lock wait.
func (d *database) patiently(ctx context.Context, work func() error) error {
	const tries = 20
	for try := 0; ; try++ {
		err := d.alone(ctx, work)
		if dialect.Classify(err) != dialect.Contention || try == tries {
			return err
		}
		pause := time.NewTimer(rand.N(time.Millisecond << min(try, 7))) //nolint:gosec // jitter needs no secrecy
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return err
		}
	}
}

// explain adds the way out to errors of the database that have one, once.
func explain(err error) error {
	var reason error
	switch dialect.Classify(err) {
	case dialect.NoTable:
		reason = ErrNotMigrated
	case dialect.ReadOnly:
		reason = ErrReadOnly
	case dialect.Unavailable:
		reason = ErrUnavailable
	case dialect.TooLarge:
		reason = ErrTooLarge
	}
	if reason == nil || errors.Is(err, reason) || errors.Is(err, ErrTooLarge) {
		return err
	}
	return fmt.Errorf("%w: %w", reason, err)
}

func affected(result sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}
