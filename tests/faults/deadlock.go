package faults

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/payload"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/tests/testdb"
)

// LoseDeadlock has MySQL or MariaDB end tx in a deadlock: of two transactions the server rolls back the one that has
// written less.
func LoseDeadlock(t testing.TB, db *testdb.DB, tx *sqlx.Tx) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	db.Do(t, `CREATE TABLE IF NOT EXISTS crossing (id INT PRIMARY KEY)`)
	db.Do(t, `INSERT INTO crossing (id) VALUES (-1), (-2) ON DUPLICATE KEY UPDATE id = id`)
	const lock = `SELECT id FROM crossing WHERE id = ? FOR UPDATE`
	other, err := db.BeginTxx(ctx, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, other.Rollback()) }()
	_, err = other.ExecContext(ctx, `INSERT INTO crossing (id) SELECT i FROM `+db.Numbers(1000))
	require.NoError(t, err)
	_, err = other.ExecContext(ctx, lock, -2)
	require.NoError(t, err)
	_, err = tx.ExecContext(ctx, lock, -1)
	require.NoError(t, err)
	crossed := make(chan error, 1)
	go func() {
		_, err := other.ExecContext(ctx, lock, -1)
		crossed <- err
	}()
	_, err = tx.ExecContext(ctx, lock, -2)
	require.Equal(t, dialect.Contention, dialect.Classify(err), "%v", err)
	require.NoError(t, <-crossed)
}

// Unlucky is a codec for MySQL and MariaDB. In the transaction that stores a message it notes who is named in the
// metadata, and repeats the statement if that was lost in a deadlock.
type Unlucky struct {
	Loses atomic.Bool // its next statement does

	t  testing.TB
	db *testdb.DB
}

// NewUnlucky returns an Unlucky with a table of its own.
func NewUnlucky(t testing.TB, db *testdb.DB) *Unlucky {
	t.Helper()
	db.Do(t, `CREATE TABLE people (name VARCHAR(100) PRIMARY KEY)`)
	return &Unlucky{t: t, db: db}
}

// Seal notes the person and marks the payload.
func (u *Unlucky) Seal(ctx context.Context, info payload.Info, plain []byte) ([]byte, error) {
	if tx, err := inbox.Tx(ctx); err == nil { // a queue seals before its transaction
		if u.Loses.CompareAndSwap(true, false) {
			LoseDeadlock(u.t, u.db, tx) //nolint:contextcheck // its statements belong to the test
		}
		const note = `INSERT INTO people (name) VALUES (?) ON DUPLICATE KEY UPDATE name = name`
		if _, err := tx.ExecContext(ctx, note, info.Metadata.Get("person")); err != nil {
			return nil, err
		}
	}
	return append([]byte("sealed "), plain...), nil
}

// Open takes the mark off.
func (u *Unlucky) Open(_ context.Context, _ payload.Info, sealed []byte) ([]byte, error) {
	plain, is := bytes.CutPrefix(sealed, []byte("sealed "))
	if !is {
		return nil, errors.New("faults: it was not sealed")
	}
	return plain, nil
}
