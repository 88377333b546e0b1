package database_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/ambient"
	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/tests/testdb"
)

// said is an error of PostgreSQL, by its state.
type said string

func (s said) Error() string    { return "SQLSTATE " + string(s) }
func (s said) SQLState() string { return string(s) }

const (
	deadlock = said("40P01")
	gone     = said("57P01")
	noTable  = said("42P01")
)

func open(t *testing.T) *database.DB {
	t.Helper()
	db, err := database.Open(testdb.On(t, "sqlite").DB, "", dialect.Names{Prefix: dialect.DefaultPrefix})
	require.NoError(t, err)
	_, err = db.ExecContext(t.Context(), `CREATE TABLE work (n INTEGER)`)
	require.NoError(t, err)
	return db
}

func insert(ctx context.Context, tx *sqlx.Tx) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO work VALUES (1)`)
	return err
}

func rows(t *testing.T, db *database.DB) (n int) {
	t.Helper()
	require.NoError(t, db.GetContext(t.Context(), &n, `SELECT COUNT(*) FROM work`))
	return n
}

// failing does its work, and fails so many times after it.
func failing(ctx context.Context, times int, failure error) (work func(tx *sqlx.Tx) error, runs *int) {
	runs = new(int)
	return func(tx *sqlx.Tx) error {
		*runs++
		if err := insert(ctx, tx); err != nil || *runs > times {
			return err
		}
		return failure
	}, runs
}

func TestWriteIsTriedAgainAfterADeadlock(t *testing.T) {
	t.Parallel()
	db := open(t)
	for name, write := range map[string]func(context.Context, func(*sqlx.Tx) error) error{
		"Write": db.Write, "WriteInTurn": db.WriteInTurn,
		"WriteFound": func(ctx context.Context, work func(*sqlx.Tx) error) error {
			return db.WriteFound(ctx, func(_ context.Context, tx *sqlx.Tx) error { return work(tx) })
		},
	} {
		before := rows(t, db)
		work, runs := failing(t.Context(), 3, deadlock)
		require.NoError(t, write(t.Context(), work), name)
		assert.Equal(t, 4, *runs, name)
		assert.Equal(t, before+1, rows(t, db), "%s: what failed was rolled back", name)

		work, runs = failing(t.Context(), 1, errors.New("another error"))
		require.ErrorContains(t, write(t.Context(), work), "another error", name)
		assert.Equal(t, 1, *runs, name)

		work, runs = failing(t.Context(), 1000, deadlock)
		require.ErrorIs(t, write(t.Context(), work), deadlock, name)
		assert.Equal(t, database.MaxTries+1, *runs, "%s gives up", name)
		assert.Equal(t, before+1, rows(t, db), name)
	}
}

// TestWriteEndsWithItsContext, and then the database is not to blame.
func TestWriteEndsWithItsContext(t *testing.T) {
	t.Parallel()
	db := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	err := db.WriteInTurn(ctx, func(*sqlx.Tx) error {
		cancel()
		return deadlock
	})
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "40P01")
	assert.Equal(t, dialect.Other, dialect.Classify(err))
}

func TestWriteJoinsTheTransactionOfAHandler(t *testing.T) {
	t.Parallel()
	db := open(t)
	tx, err := db.Begin(t.Context())
	require.NoError(t, err)
	ctx := ambient.With(t.Context(), ambient.New(tx.Tx, db.DB))
	work, runs := failing(ctx, 1, deadlock)
	require.ErrorIs(t, db.Write(ctx, work), deadlock, "whoever began it decides")
	assert.Equal(t, 1, *runs)
	var n int
	require.NoError(t, sqlx.GetContext(ctx, db.Reader(ctx), &n, `SELECT COUNT(*) FROM work`))
	assert.Equal(t, 1, n, "the reader is in it too")
	require.NoError(t, tx.Rollback())
	assert.Zero(t, rows(t, db))
}

// TestWriteFoundIsCommittedBeforeWhatFollows, which may want to write.
func TestWriteFoundIsCommittedBeforeWhatFollows(t *testing.T) {
	t.Parallel()
	db := open(t)
	var within *ambient.Tx
	told := errors.New("not told")
	require.NoError(t, db.WriteFound(t.Context(), func(ctx context.Context, tx *sqlx.Tx) error {
		within = ambient.From(ctx)
		within.AfterCommit(t, func() { //nolint:contextcheck // it comes after the transaction
			told = db.Write(t.Context(), func(tx *sqlx.Tx) error { return insert(t.Context(), tx) })
		})
		live, ok := within.Live(db.DB)
		assert.True(t, ok)
		assert.Same(t, tx, live)
		return insert(ctx, tx)
	}))
	require.NoError(t, told)
	assert.Equal(t, 2, rows(t, db))
	assert.False(t, within.Open())

	assert.Panics(t, func() {
		_ = db.WriteFound(t.Context(), func(ctx context.Context, tx *sqlx.Tx) error {
			within = ambient.From(ctx)
			_ = insert(ctx, tx)
			panic("a function of the service")
		})
	})
	assert.False(t, within.Open())
	assert.Equal(t, 2, rows(t, db), "rolled back, and the turn is left")
}

func TestALostConnectionIsTold(t *testing.T) {
	t.Parallel()
	db := open(t)
	lost := 0
	db.Lost = func() { lost++ }
	require.ErrorIs(t, db.Write(t.Context(), func(*sqlx.Tx) error { return gone }), gone)
	assert.Equal(t, 1, lost)
	require.ErrorIs(t, db.Write(t.Context(), func(*sqlx.Tx) error { return noTable }), noTable)
	assert.Equal(t, 1, lost)
}

func TestExplainSaysTheWayOutOnce(t *testing.T) {
	t.Parallel()
	for err, meaning := range map[error]error{
		gone: database.ErrUnavailable, noTable: database.ErrNotMigrated, said("25006"): database.ErrReadOnly,
		said("55000"): database.ErrUnavailable, said("54000"): database.ErrTooLarge,
		said("42501"): database.ErrUnavailable, said("53100"): database.ErrUnavailable,
	} {
		once := database.Explain(err)
		require.ErrorIs(t, once, meaning)
		require.ErrorIs(t, once, err)
		assert.Equal(t, once, database.Explain(once))
	}
	require.ErrorContains(t, database.Explain(said("42501")), "the role lacks a right")
	require.ErrorContains(t, database.Explain(said("53100")), "no room")
	other := errors.New("another error")
	assert.Equal(t, other, database.Explain(other))
	assert.NoError(t, database.Explain(nil))
}
