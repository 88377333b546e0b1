package durable_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestACallForManyFinishesTheMessageItIsAt: at the end of its context everybody knows what
// became of each message.
func TestACallForManyFinishesTheMessageItIsAt(t *testing.T) {
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		s, _ := b.stuck(3)
		require.NoError(t, s.router.Close())
		b.unserve()
		pool := faults.Open(t, b.db)
		for _, call := range []string{"millrace_audit", faults.Commit} {
			ctx, cancel := context.WithCancel(t.Context())
			pool.Set(faults.Plan{Before: func(_ context.Context, c string) error {
				if strings.Contains(c, call) {
					cancel()
				}
				return nil
			}})
			sent, before := to{}, b.audited("retry")
			n, err := admin.New(b.newStore(pool.DB)).RetryAll(ctx, admin.Filter{}, ada, sent, admin.Pace{})
			require.ErrorIs(t, err, context.Canceled, call)
			assert.Equal(t, 1, n, call)
			assert.Len(t, sent["orders"], 1, call)
			assert.Equal(t, 1, b.audited("retry")-before, call)
		}
		assert.Equal(t, 1, b.open(admin.FailedTerminal), "nobody was at it")
	}))
}
