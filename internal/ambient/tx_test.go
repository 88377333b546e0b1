package ambient_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/millrace-go/millrace/internal/ambient"
)

func open(t *testing.T) *sqlx.DB {
	t.Helper()
	db, err := sqlx.Open("sqlite", ":memory:")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

func begin(t *testing.T) (*sqlx.DB, *sqlx.Tx, *ambient.Tx) {
	t.Helper()
	db := open(t)
	tx, err := db.BeginTxx(t.Context(), nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback() }) // ended by the context
	return db, tx, ambient.New(tx, db)
}

func TestContextCarriesTheTransaction(t *testing.T) {
	db, tx, a := begin(t)
	assert.Nil(t, ambient.From(t.Context()))
	ctx := ambient.With(t.Context(), a)
	require.Same(t, a, ambient.From(ctx))

	live, ok := ambient.From(ctx).Live(db)
	require.True(t, ok)
	assert.Same(t, tx, live)
	assert.False(t, a.Taken(), "a look is no use")
	got, ok := a.Take()
	require.True(t, ok)
	assert.Same(t, tx, got)
	assert.True(t, a.Taken())
}

func TestTransactionIsLiveOnItsOwnPoolUntilItEnds(t *testing.T) {
	db, _, a := begin(t)
	_, ok := a.Live(open(t))
	assert.False(t, ok, "another pool")
	_, ok = a.Live(sqlx.NewDb(db.DB, "sqlite"))
	assert.True(t, ok, "the same pool, wrapped again")
	_, ok = ambient.From(context.Background()).Live(db)
	assert.False(t, ok, "no transaction at all")

	a.End()
	_, ok = a.Live(db)
	assert.False(t, ok)
	_, ok = a.Take()
	assert.False(t, ok)
	assert.False(t, a.Taken(), "a refusal is no use")
}

func TestRunsAndFailuresAreCounted(t *testing.T) {
	_, _, a := begin(t)
	require.NoError(t, a.Failure())
	assert.False(t, a.Running())
	assert.Equal(t, 0, a.Enter())
	assert.Equal(t, 1, a.Enter())
	a.Leave()
	assert.True(t, a.Running(), "one of them")
	a.Leave()
	assert.False(t, a.Running())
	first, second := errors.New("first"), &wrapped{errors.New("second")}
	a.Failed(first)
	require.ErrorIs(t, a.Failure(), first)
	a.Failed(second) // of another type
	require.ErrorIs(t, a.Failure(), second)
}

type wrapped struct{ error }

func TestTheLastResultCounts(t *testing.T) {
	_, _, a := begin(t)
	assert.Nil(t, a.Result())
	a.SetResult([]byte("1"))
	a.SetResult([]byte("2"))
	assert.Equal(t, "2", string(a.Result()))
}

func TestHooksRunAfterTheCommitOncePerOwner(t *testing.T) {
	_, _, a := begin(t)
	var ran []string
	a.AfterCommit("one", func() { ran = append(ran, "one") })
	a.AfterCommit("one", func() { ran = append(ran, "one again") })
	a.AfterCommit("two", func() { ran = append(ran, "two") })
	a.End()
	assert.Empty(t, ran)
	a.Committed()
	assert.Equal(t, []string{"one", "two"}, ran)
}

func TestTransactionIsSafeForConcurrentUse(t *testing.T) {
	db, _, a := begin(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			a.Take()
			a.Live(db)
			a.Enter()
			a.Running()
			a.Leave()
			a.Failed(errors.New("x"))
			a.SetResult(nil)
			a.Result()
			a.Taken()
			a.AfterCommit(a, func() {})
			a.Committed()
			a.End()
		})
	}
	wg.Wait()
	assert.Equal(t, 8, a.Enter())
}
