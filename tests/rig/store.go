package rig

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/outbox"
)

// NewStore returns a store on pool.
func NewStore(t testing.TB, pool *sqlx.DB, config inbox.Config) *inbox.Store {
	t.Helper()
	store, err := inbox.NewStore(pool, config)
	require.NoError(t, err)
	return store
}

// NewOutbox returns a publisher to the outbox on pool.
func NewOutbox(t testing.TB, pool *sqlx.DB, config outbox.Config) *outbox.Publisher {
	t.Helper()
	out, err := outbox.NewPublisher(pool, config)
	require.NoError(t, err)
	return out
}

// Exec is a handler's effect: it runs a statement in the transaction of ctx. The placeholders are question marks.
func Exec(ctx context.Context, query string, args ...any) error {
	tx, err := inbox.Tx(ctx)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, tx.Rebind(query), args...)
	return err
}

// Story returns the story of a message.
func Story(t testing.TB, store *inbox.Store, messageID string) admin.Story {
	t.Helper()
	story, err := admin.New(store).Story(context.WithoutCancel(t.Context()), messageID)
	require.NoError(t, err)
	return story
}

// Parked returns the first hundred parked messages.
func Parked(t testing.TB, store *inbox.Store) []admin.Message {
	t.Helper()
	parked, err := admin.New(store).Find(context.WithoutCancel(t.Context()), admin.Filter{Status: admin.Parked}, 0, 100)
	require.NoError(t, err)
	return parked
}

// Find returns the first hundred open messages that match f.
func Find(t testing.TB, store *inbox.Store, f admin.Filter) []admin.Message {
	t.Helper()
	found, err := admin.New(store).Find(context.WithoutCancel(t.Context()), f, 0, 100)
	require.NoError(t, err)
	return found
}

// Purge makes the store delete expired claims, and returns how many it deleted.
func Purge(t testing.TB, store *inbox.Store) int {
	t.Helper()
	n, err := store.Purge(context.WithoutCancel(t.Context()))
	require.NoError(t, err)
	return n
}

// Queue returns a queue of the store.
func Queue(t testing.TB, store *inbox.Store, config inbox.QueueConfig) *inbox.Queue {
	t.Helper()
	queue, err := store.Queue(config)
	require.NoError(t, err)
	return queue
}

// Take leases up to n messages that are due within a second.
func Take(t testing.TB, queue *inbox.Queue, n int) []*inbox.Leased {
	t.Helper()
	return TakeOut(t, queue, 0, n)
}

// TakeOut leases up to n messages that are due within a second, and marks the first out of them. It asks again, as
// pubsub.Durable does, if a server that is busy gave no answer in time.
func TakeOut(t testing.TB, queue *inbox.Queue, out, n int) (taken []*inbox.Leased) {
	t.Helper()
	Eventually(t, "the database answers", func() bool {
		var err error
		taken, _, err = queue.TakeOut(context.WithoutCancel(t.Context()), out, n, time.Second)
		if !errors.Is(err, context.DeadlineExceeded) {
			require.NoError(t, err)
		}
		return err == nil
	})
	return taken
}
