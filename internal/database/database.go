package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/ambient"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/owned"
	"github.com/millrace-go/millrace/internal/writers"
)

// DB is a service's pool and the statements for its database. It is safe for concurrent use.
type DB struct {
	*sqlx.DB
	Dialect *dialect.Dialect

	// Lost, unless it is nil, is called when an error says that a connection was lost or that the
	// server changed its role. Set it before the first use.
	Lost func()

	writers    writers.Queue // nil if the database takes several writers
	isolation  atomic.Pointer[sql.TxOptions]
	generation atomic.Int64
	packet     atomic.Int64 // of the server, when it was last asked; 0 if it was not
}

// Open returns pool with the statements for the database called name, or for the one that pool uses
// if name is empty. It opens a connection only if the driver does not reveal its database.
func Open(pool *sqlx.DB, name string, names dialect.Names) (*DB, error) {
	if pool == nil {
		return nil, errors.New("a *sqlx.DB is required")
	}
	d, err := dialect.Of(pool, name, names)
	if err != nil {
		return nil, err
	}
	db := &DB{DB: pool, Dialect: d}
	if d.OneWriter {
		db.writers = writers.Of(pool.DB)
	}
	return db, nil
}

// Migrate brings the schema up to date, in the writer's turn.
func (db *DB) Migrate(ctx context.Context) error {
	leave, err := db.Enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	return db.Dialect.Migrate(ctx, db.DB)
}

// Enter waits for the writer's turn. It returns at once if the database takes several writers.
func (db *DB) Enter(ctx context.Context) (leave func(), err error) { return db.writers.Enter(ctx) }

// Begin starts a transaction at READ COMMITTED. It asks for that level only if the connection's
// default differs: asking costs some drivers a round trip.
func (db *DB) Begin(ctx context.Context) (*owned.Tx, error) {
	options := db.isolation.Load()
	if options == nil {
		var err error
		if options, err = db.probeIsolation(ctx); err != nil {
			return nil, fmt.Errorf("ask for the isolation level: %w", err)
		}
		db.isolation.Store(options)
	}
	return owned.Begin(ctx, db.DB, options, db.Dialect.OneWriter)
}

func (db *DB) probeIsolation(ctx context.Context) (*sql.TxOptions, error) {
	if db.Dialect.OneWriter {
		return &sql.TxOptions{}, nil
	}
	rows, err := db.QueryContext(ctx, db.Dialect.SelectIsolation)
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // rows.Err tells
	var level string
	for rows.Next() {
		var name, value string
		if err := rows.Scan(&name, &value); err != nil {
			return nil, err
		}
		if name != maxPacket {
			level = value
		} else if bytes, err := strconv.ParseInt(value, 10, 64); err == nil {
			db.NotePacket(bytes)
		}
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	if strings.EqualFold(strings.ReplaceAll(level, "-", " "), "read committed") {
		return &sql.TxOptions{}, nil
	}
	return &sql.TxOptions{Isolation: sql.LevelReadCommitted}, nil
}

// Reader returns what queries run on: the handler's transaction in ctx, else the pool.
func (db *DB) Reader(ctx context.Context) sqlx.ExtContext {
	if tx, live := db.Live(ctx); live {
		return tx
	}
	return db.DB
}

// Live returns the handler's transaction in ctx if it is on this pool and has not ended.
func (db *DB) Live(ctx context.Context) (*sqlx.Tx, bool) { return ambient.From(ctx).Live(db.DB) }

// Noticed returns err, and calls [DB.Lost] if err says that a connection was lost. A right that the role lacks says nothing
// about the server.
func (db *DB) Noticed(err error) error {
	switch dialect.Classify(err) {
	case dialect.Unavailable, dialect.Unready, dialect.ReadOnly: // read-only: the primary was demoted
		if !dialect.Denied(err) {
			db.Forget()
		}
	}
	return err
}

// Generation grows when a connection is lost: values that were remembered in an older generation
// are void.
func (db *DB) Generation() int64 { return db.generation.Load() }

// Forget begins a new generation and calls [DB.Lost].
func (db *DB) Forget() {
	db.generation.Add(1)
	db.isolation.Store(nil)
	if db.Lost != nil {
		db.Lost()
	}
}
