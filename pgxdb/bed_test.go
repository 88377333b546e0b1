package pgxdb_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/pgxdb"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// newPool returns a pool of this package on db, with what options change.
func newPool(t testing.TB, db *testdb.DB, change ...func(*pgx.ConnConfig)) *sqlx.DB {
	t.Helper()
	config, err := pgx.ParseConfig(db.DSN)
	require.NoError(t, err)
	for _, c := range change {
		c(config)
	}
	pool := pgxdb.Open(config)
	t.Cleanup(func() { require.NoError(t, pool.Close()) })
	return pool
}

// handler returns h behind an inbox on pool.
func handler(t testing.TB, pool *sqlx.DB, config inbox.ConsumerConfig, h func(msg *message.Message) error) message.HandlerFunc {
	t.Helper()
	store := rig.NewStore(t, pool, inbox.Config{WithoutPlugin: true})
	require.NoError(t, store.Migrate(t.Context()))
	config.Name = "billing"
	wrapped, err := store.Handler(config, func(msg *message.Message) ([]*message.Message, error) { return nil, h(msg) })
	require.NoError(t, err)
	return wrapped
}

func newMessage(t testing.TB) *message.Message {
	t.Helper()
	msg := message.NewMessage(watermill.NewUUID(), []byte("{}"))
	msg.SetContext(t.Context())
	return msg
}
