package tests_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/testdb"
)

// The bound of a pgxpool is not to be seen through database/sql: too many transactions would take all its
// connections, and handlers that use the pool beside wait for each other. Check says what to set.
func TestAPgxpoolBehindThePool(t *testing.T) {
	t.Parallel()
	const connections, messages = 4, 12
	b := newBed(t, testdb.On(t, "postgres"))
	config, err := pgxpool.ParseConfig(b.db.DSN)
	require.NoError(t, err)
	config.MaxConns = connections
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	defer pool.Close()
	db := sqlx.NewDb(stdlib.OpenDBFromPool(pool), "pgx")
	defer func() { assert.NoError(t, db.Close()) }()
	store := b.newStore(db, inbox.Config{})
	said := func() (about []string) {
		found, err := store.Check(t.Context())
		require.NoError(t, err)
		for _, f := range found {
			if f.Subject == "pool" || strings.Contains(f.Remedy, "MaxConns of the pgxpool") {
				about = append(about, f.String())
			}
		}
		return about
	}
	require.Len(t, said(), 1)
	assert.Contains(t, said()[0], "db.SetMaxOpenConns")

	db.SetMaxOpenConns(connections)
	assert.Empty(t, said())
	h := b.inbox(func(msg *message.Message) ([]*message.Message, error) {
		var one int
		if err := db.GetContext(msg.Context(), &one, `SELECT 1 FROM pg_sleep(0.05)`); err != nil {
			return nil, err
		}
		return effect(msg)
	}, on(store), func(i *millrace.Inbox) { i.Timeout = 5 * time.Second })
	var all sync.WaitGroup
	for range messages {
		all.Go(func() {
			_, err := h(newMessage("x"))
			assert.NoError(t, err)
		})
	}
	all.Wait()
	assert.Equal(t, messages, b.effects())
}
