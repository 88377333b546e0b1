package outbox_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// A relay on the publisher's database does not send what is stored on another. The publisher says so once, and is silent where
// it does not know.
func TestAPublisherOfAnotherDatabase(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		other := testdb.On(t, db.Dialect)
		other.Do(t, `UPDATE millrace_schema SET applied_at = applied_at + 1 WHERE version = 1`) // both are copies of one
		empty := testdb.On(t, db.Dialect, testdb.Empty())
		unknown := testdb.On(t, db.Dialect)
		unknown.Do(t, `DROP TABLE millrace_schema`)
		for name, c := range map[string]struct {
			publisher, transaction *sqlx.DB
			said                   int
		}{
			"another pool":     {db.Open(t).DB, db.DB, 0},
			"another database": {other.DB, db.DB, 1},
			"no tables":        {empty.DB, db.DB, 1},
			"no answer there":  {db.DB, unknown.DB, 0},
		} {
			rig.Eventually(t, name+": the databases answer in time", func() bool {
				log := &rig.Events{}
				out := rig.NewOutbox(t, c.publisher, outbox.Config{Logger: log})
				for range 2 {
					require.NoError(t, outbox.InTx(t.Context(), c.transaction, func(ctx context.Context, _ *sqlx.Tx) error {
						return out.Publish("orders", carried(ctx, "a", "b")...)
					}), name)
				}
				said := strings.Count(strings.Join(log.Logs(), "\n"), "in another database than that of the Publisher")
				assert.LessOrEqual(t, said, c.said, name)
				return said >= c.said
			})
		}

		store := rig.NewStore(t, db.DB, inbox.Config{Logger: &rig.Events{}})
		rig.Eventually(t, "the databases answer in time", func() bool {
			log := &rig.Events{}
			out := rig.NewOutbox(t, other.DB, outbox.Config{Logger: log})
			require.Error(t, outbox.InTx(t.Context(), db.DB, func(ctx context.Context, _ *sqlx.Tx) error {
				require.NoError(t, out.Publish("orders", carried(ctx, "a")...))
				return errRefused
			}))
			assert.Empty(t, log.Logs(), "it was rolled back")
			h := millrace.Inbox{Store: store, Consumer: "billing", Outbox: out}.Middleware(func(msg *message.Message) ([]*message.Message, error) {
				return nil, out.Publish("orders", carried(msg.Context(), "a")...)
			})
			require.NoError(t, do(h, newOrder()))
			assert.LessOrEqual(t, len(log.Logs()), 1)
			return len(log.Logs()) == 1
		})
	})
}

// A question without an answer is asked again a minute later, and none waits for a connection that the handler may hold.
func TestAPublisherAsksAgainWhereItsDatabaseIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, other := testdb.On(t, "sqlite"), testdb.On(t, "sqlite")
		other.Do(t, `UPDATE millrace_schema SET applied_at = applied_at + 1 WHERE version = 1`)
		pool := faults.Open(t, other)
		pool.SetMaxOpenConns(1)
		log := &rig.Events{}
		out := rig.NewOutbox(t, pool.DB, outbox.Config{Logger: log})
		asked := 0
		loses := func(err error) {
			pool.Set(faults.Plan{Before: faults.At("applied_at", func() error { asked++; return err })})
		}
		publish := func() {
			t.Helper()
			began := time.Now()
			require.NoError(t, outbox.InTx(t.Context(), db.DB, func(ctx context.Context, _ *sqlx.Tx) error {
				return out.Publish("orders", carried(ctx, "a")...)
			}))
			require.Zero(t, time.Since(began))
		}

		loses(faults.ErrLost)
		conn, err := pool.Conn(t.Context())
		require.NoError(t, err)
		publish()
		require.Zero(t, asked)
		require.NoError(t, conn.Close())

		publish()
		lost := asked
		require.Positive(t, lost)
		publish()
		require.Equal(t, lost, asked, "within a minute")
		loses(nil)
		for range 3 {
			time.Sleep(time.Minute)
			publish()
		}
		assert.Equal(t, lost+1, asked)
		assert.Len(t, log.Logs(), 1)
	})
}

// The statements of one kind of database are not those of another.
func TestAPublisherOfAnotherKindOfDatabase(t *testing.T) {
	t.Parallel()
	sqlite := testdb.On(t, "sqlite")
	for _, kind := range []string{"postgres", "mysql"} {
		server := testdb.On(t, kind)
		for _, c := range []struct {
			publisher, transaction *testdb.DB
		}{{server, sqlite}, {sqlite, server}} {
			out := rig.NewOutbox(t, c.publisher.DB, outbox.Config{})
			err := outbox.InTx(t.Context(), c.transaction.DB, func(ctx context.Context, _ *sqlx.Tx) error {
				return out.Publish("orders", carried(ctx, "a")...)
			})
			require.ErrorContains(t, err, "the transaction is on a database of the kind "+c.transaction.Dialect+
				", and the Publisher on one of the kind "+c.publisher.Dialect)
		}
	}
}
