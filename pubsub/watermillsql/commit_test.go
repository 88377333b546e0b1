package watermillsql_test

import (
	"context"
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/pubsub/watermillsql"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/testdb"
)

var errStays = errors.New("the commit failed")

// TestAFailedCommitGivesItsConnectionUp: whoever has it next would write into the transaction that was left open.
func TestAFailedCommitGivesItsConnectionUp(t *testing.T) {
	each(t, func(t *testing.T, db *testdb.DB) {
		pool := faults.Open(t, db)
		pool.SetMaxOpenConns(1)
		p, err := watermillsql.NewPublisher(pool.DB, watermillsql.Config{})
		require.NoError(t, err)
		_, err = db.ExecContext(t.Context(), `CREATE TABLE work (id INTEGER PRIMARY KEY)`)
		require.NoError(t, err)
		all := func() (msgs []*message.Message) { // more than one statement takes
			for range 1001 {
				msgs = append(msgs, message.NewMessage(watermill.NewUUID(), nil))
			}
			return msgs
		}
		written := 0
		unharmed := func(call func() error) {
			t.Helper()
			pool.Set(faults.Plan{Stays: func(context.Context) error { return errStays }})
			_ = call() // on MySQL the tables are there all the same
			pool.Set(faults.Plan{})
			_, err := pool.ExecContext(t.Context(), db.Rebind(`INSERT INTO work (id) VALUES (?)`), written)
			require.NoError(t, err)
			written++
			var n int
			require.NoError(t, db.GetContext(t.Context(), &n, `SELECT COUNT(*) FROM work`))
			assert.Equal(t, written, n, "the service's own write was never committed")
		}
		unharmed(func() error { return p.Initialize(t.Context(), "orders") })
		require.NoError(t, p.Initialize(t.Context(), "orders"))
		unharmed(func() error {
			err := p.Publish("orders", all()...)
			assert.ErrorIs(t, err, errStays)
			return err
		})
		require.NoError(t, p.Publish("orders", all()...))
	})
}
