package migrating_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// withDeduplicator is how a router is set up that has Watermill's Deduplicator.
func withDeduplicator(router *message.Router) error {
	seen, err := middleware.NewMapExpiringKeyRepository(10 * time.Minute)
	if err != nil {
		return err
	}
	router.AddMiddleware((&middleware.Deduplicator{
		KeyFactory: middleware.NewMessageHasherSHA256(1 << 20),
		Repository: seen,
		Timeout:    time.Second,
	}).Middleware)
	return nil
}

// withInbox is the same with the inbox.
func withInbox(router *message.Router, store *inbox.Store) error {
	millrace.Inbox{Store: store, Key: inbox.ByPayload()}.AddTo(router)
	return nil
}

// TestFromTheDeduplicator: what fails once is lost before, also behind an inbox, and handled
// after.
func TestFromTheDeduplicator(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		store := rig.NewStore(t, db.DB, inbox.Config{})
		require.NoError(t, store.Migrate(t.Context()))
		for _, c := range []struct {
			name, payload string
			wire          func(*message.Router) error
			handled       int
		}{
			{"before", "1", withDeduplicator, 0},
			{"one inside of the other", "2", func(r *message.Router) error {
				return errors.Join(withInbox(r, store), withDeduplicator(r))
			}, 0},
			{"after", "3", func(r *message.Router) error { return withInbox(r, store) }, 1},
		} {
			t.Run(c.name, func(t *testing.T) {
				assert.Equal(t, c.handled, failsOnce(t, c.wire, c.payload))
			})
		}
	})
}

// failsOnce delivers a message whose handler fails, until it is acked, and a copy with
// another UUID. It counts the runs that succeed.
func failsOnce(t *testing.T, wire func(*message.Router) error, payload string) (handled int) {
	t.Helper()
	router := rig.NewRouter(t)
	require.NoError(t, wire(router))
	feed, failed := rig.NewFeed(), false
	router.AddConsumerHandler("mail", "orders", feed, func(msg *message.Message) error {
		if !failed {
			failed = true
			return errors.New("the first run fails")
		}
		handled++
		return nil
	})
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.WithoutCancel(t.Context())) }()
	<-router.Running()
	for _, uuid := range []string{"a", "a", "b"} {
		msg := message.NewMessage(uuid, []byte(payload))
		feed.Send(t, msg)
		rig.Answer(t, msg)
	}
	require.NoError(t, router.Close())
	require.NoError(t, <-ended)
	return handled
}
