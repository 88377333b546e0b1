package pgxdb_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/testdb"
)

// notices counts the statements that notify relays.
type notices struct{ atomic.Int64 }

func (n *notices) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if strings.HasPrefix(data.SQL, "NOTIFY") {
		n.Add(1)
	}
	return ctx
}

func (*notices) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// tracer notes what pgx tells.
type tracer struct{ told []string }

func (r *tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	r.told = append(r.told, strings.Fields(data.SQL)[0])
	return ctx
}

func (r *tracer) TraceQueryEnd(_ context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	if data.Err != nil {
		r.told = append(r.told, "failed")
	}
}

// TestATracer of pgx hears of each statement.
func TestATracer(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "postgres")
	heard := &tracer{}
	pool := newPool(t, db, func(c *pgx.ConnConfig) { c.Tracer = heard })
	for _, fails := range []bool{false, true} {
		tx, err := pool.BeginTxx(t.Context(), nil)
		require.NoError(t, err)
		divisor := 1
		if fails {
			divisor = 0
		}
		_, err = tx.ExecContext(t.Context(), `SELECT 1 / $1::INT`, divisor)
		require.Equal(t, fails, err != nil)
		if fails {
			require.NoError(t, tx.Rollback())
		} else {
			require.NoError(t, tx.Commit())
		}
	}
	assert.Equal(t, []string{"begin", "SELECT", "COMMIT", "begin", "SELECT", "failed", "rollback"}, heard.told)
}
