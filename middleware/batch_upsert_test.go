package middleware_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestTheUpsertOfTheExample runs it on every database, with a payload that nobody can read.
func TestTheUpsertOfTheExample(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		db.Do(t, `CREATE TABLE sold (sku VARCHAR(50) PRIMARY KEY, items INTEGER NOT NULL)`)
		const n = 50
		first := sqlxBatch(t, db.DB, n)
		second := sqlxBatch(t, db.Open(t).DB, n) // another process
		bad := message.NewMessage(watermill.NewUUID(), []byte("x"))
		answers := []<-chan error{start(first, bad)}
		for i := range 2*n - 1 {
			msg := message.NewMessage(watermill.NewUUID(), fmt.Appendf(nil, `{"sku": "cup %d", "items": 2}`, i%5))
			answers = append(answers, start([]message.NoPublishHandlerFunc{first, second}[i%2], msg))
		}
		require.ErrorContains(t, rig.Within(t, answers[0], "the bad message is not answered"), "invalid character")
		for _, a := range answers[1:] {
			require.NoError(t, rig.Within(t, a, "a message is not answered"))
		}
		assert.Equal(t, 5, db.Count(t, `SELECT COUNT(*) FROM sold`))
		assert.Equal(t, 2*(2*n-1), db.Count(t, `SELECT SUM(items) FROM sold`))
	})
}

func start(handle message.NoPublishHandlerFunc, msg *message.Message) <-chan error {
	return rig.Go(func() error { return handle(msg) })
}

// sqlxBatch returns the handler of a process.
func sqlxBatch(t *testing.T, pool *sqlx.DB, n int) message.NoPublishHandlerFunc {
	t.Helper()
	store := rig.NewStore(t, pool, inbox.Config{})
	batch := millrace.Batch{Inbox: millrace.Inbox{Store: store, Consumer: "sold"}, Max: n, Linger: 20 * time.Millisecond}
	return batch.ConsumerHandler(addSales)
}
