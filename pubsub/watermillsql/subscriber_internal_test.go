package watermillsql

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// Where the server makes names of tables lower-case, Orders and orders would share theirs.
func TestTopicsDifferByMoreThanCase(t *testing.T) {
	for _, lower := range []int{1, 2} {
		require.ErrorIs(t, checkCase("Orders", lower), ErrTopic)
		require.NoError(t, checkCase("orders-2", lower))
	}
	require.NoError(t, checkCase("Orders", 0))
}

// A service may subscribe again and again for as long as it runs.
func TestSubscriptionsLeaveNothingBehind(t *testing.T) {
	db := testdb.On(t, "postgres")
	s, err := NewSubscriber(db.DB, SubscriberConfig{ConsumerGroup: "group"})
	require.NoError(t, err)
	require.NoError(t, s.Initialize(t.Context(), "orders"))
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		_, err := s.Subscribe(ctx, "orders")
		require.NoError(t, err)
		cancel()
	}
	rig.Eventually(t, "none is kept", func() bool {
		kept := 0
		s.channels.Range(func(any, any) bool { kept++; return true })
		return kept == 0
	})
	require.NoError(t, s.Close())
}
