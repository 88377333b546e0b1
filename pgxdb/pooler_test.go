package pgxdb_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/same"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestAPoolerThatLosesTheServer at a COMMIT leaves it in doubt, and the redelivery finds out. PgBouncer says FATAL, older
// ones ERROR.
func TestAPoolerThatLosesTheServer(t *testing.T) {
	t.Parallel()
	for _, severity := range []string{"FATAL", "ERROR"} {
		db := testdb.On(t, "postgres")
		db.Do(t, `CREATE TABLE work (n INT)`)
		works := func() int { return db.Count(t, `SELECT COUNT(*) FROM work`) }
		says, err := (&pgproto3.ErrorResponse{Severity: severity, Code: "08P01", Message: "server conn crashed?"}).Encode(nil)
		require.NoError(t, err)
		pooler := &same.Losing{Commit: []byte("COMMIT"), Says: says, Done: func() {
			rig.Eventually(t, "the server has committed", func() bool { return works() == 2 })
		}}
		pool := newPool(t, db, func(c *pgx.ConnConfig) { c.DefaultQueryExecMode, c.DialFunc = pgx.QueryExecModeExec, pooler.Dial })
		out := rig.NewOutbox(t, pool, outbox.Config{})
		handle := handler(t, pool, inbox.ConsumerConfig{}, func(msg *message.Message) error {
			if err := rig.Exec(msg.Context(), `INSERT INTO work VALUES (?)`, 1); err != nil {
				return err
			}
			return out.Publish("orders", message.NewMessageWithContext(msg.Context(), watermill.NewUUID(), nil))
		})
		_, err = handle(newMessage(t))
		require.NoError(t, err)
		msg := newMessage(t)
		pooler.Next.Store(true)
		_, err = handle(msg)
		require.ErrorContains(t, err, "server conn crashed?")
		require.NotErrorIs(t, err, inbox.ErrTxEndedByHandler)
		_, err = handle(msg)
		require.NoError(t, err)
		assert.Equal(t, 2, works(), severity)
		assert.Equal(t, 2, db.Count(t, `SELECT COUNT(*) FROM millrace_outbox`), severity)
	}
}
