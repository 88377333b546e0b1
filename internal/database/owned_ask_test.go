package database_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/owned"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestAskSaysWhatItLearnt, and nothing of the server where it could not ask.
func TestAskSaysWhatItLearnt(t *testing.T) {
	t.Parallel()
	pool := testdb.On(t, "sqlite", testdb.Pool(1)).DB
	require.NoError(t, owned.Ask(t.Context(), pool.DB))

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := owned.Ask(ctx, pool.DB)
	require.ErrorIs(t, err, owned.ErrUnasked)
	assert.NotErrorIs(t, err, owned.ErrUnanswered)

	conn, err := pool.Conn(t.Context())
	require.NoError(t, err)
	require.ErrorIs(t, owned.Ask(t.Context(), pool.DB), owned.ErrUnasked)
	require.NoError(t, conn.Close())
	require.NoError(t, owned.Ask(t.Context(), pool.DB))

	require.NoError(t, pool.Close())
	err = owned.Ask(t.Context(), pool.DB)
	require.ErrorContains(t, err, "closed", "an error of the pool stays as it is")
	assert.NotErrorIs(t, err, owned.ErrUnasked)
}
