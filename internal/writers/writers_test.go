package writers_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/writers"
)

// nowhere is a driver that never connects.
type nowhere struct{}

func (nowhere) Connect(context.Context) (driver.Conn, error) { return nil, errors.New("nowhere") }
func (nowhere) Driver() driver.Driver                        { return nil }

func pool(t *testing.T) *sql.DB {
	t.Helper()
	db := sql.OpenDB(nowhere{})
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

func TestOnePoolHasOneQueue(t *testing.T) {
	db := pool(t)
	var wg sync.WaitGroup
	queues := make([]writers.Queue, 16)
	for i := range queues {
		wg.Go(func() { queues[i] = writers.Of(db) })
	}
	wg.Wait()
	for _, q := range queues {
		assert.Equal(t, queues[0], q)
	}
	assert.NotEqual(t, queues[0], writers.Of(pool(t)), "another pool")
}

func TestWritersGoInOneByOneAndInTheOrderOfAsking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := make(writers.Queue, 1)
		leave, err := q.Enter(t.Context())
		require.NoError(t, err)
		const waiting = 20
		var order, want []int
		for i := range waiting {
			want = append(want, i)
			go func() {
				leave, err := q.Enter(t.Context())
				assert.NoError(t, err)
				order = append(order, i) // the turn excludes the others
				leave()
			}()
			synctest.Wait()
		}
		require.Empty(t, order)
		leave()
		synctest.Wait()
		require.Equal(t, want, order)
	})
}

func TestWaitingToWriteEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := make(writers.Queue, 1)
		leave, err := q.Enter(t.Context())
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = q.Enter(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		leave()
		leave, err = q.Enter(t.Context())
		require.NoError(t, err, "the one who left held the turn")
		leave()
	})
}

func TestAQueueIsFreedWithItsPool(t *testing.T) {
	runtime.GC()
	before := writers.Len()
	const pools = 50
	for range pools {
		db := sql.OpenDB(nowhere{})
		writers.Of(db)
		require.NoError(t, db.Close())
	}
	require.GreaterOrEqual(t, writers.Len(), before+1)
	require.Eventually(t, func() bool {
		runtime.GC()
		return writers.Len() <= before
	}, 5*time.Minute, time.Millisecond)
}

func TestAQueueIsKnownOnceSomebodyAskedForIt(t *testing.T) {
	db := sql.OpenDB(nowhere{})
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	require.Nil(t, writers.Known(db))
	for range 2 { // and nobody waits
		_, err := writers.Known(db).Enter(t.Context())
		require.NoError(t, err)
	}
	require.Equal(t, writers.Of(db), writers.Known(db))
}
