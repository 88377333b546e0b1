package middleware_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
)

// The messages of a handler that takes the consumer of another one go back to their source after pauses that grow: none can be
// handled until the service is changed.
func TestARefusedConsumerSlowsItsSourceDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, store := open(t)
		none := func(*message.Message) ([]*message.Message, error) { return nil, nil }
		first := millrace.Inbox{Store: store, Consumer: "shared"}
		require.NoError(t, send(first.Middleware(none), "a"))
		claims := store.Leases()
		require.NoError(t, send(millrace.Deduplicate{Claims: claims, Consumer: "shared"}.Middleware(none), "a"))

		second := first
		second.Key = inbox.ByMetadata("order")
		batch := millrace.Batch{Inbox: second}.ConsumerHandler(func(context.Context, []*message.Message) error { return nil })
		for who, h := range map[string]message.HandlerFunc{
			"middleware.Inbox": second.Middleware(none),
			"middleware.Batch": func(msg *message.Message) ([]*message.Message, error) { return nil, batch(msg) },
			"middleware.Deduplicate": millrace.Deduplicate{
				Claims: claims, Consumer: "shared", Key: inbox.ByMetadata("order"),
			}.Middleware(none),
		} {
			pauses := make([]time.Duration, 10)
			for i := range pauses {
				began := time.Now()
				err := send(h, "b")
				require.ErrorIs(t, err, inbox.ErrKeyChanged)
				require.ErrorContains(t, err, who+`: message "b": `)
				pauses[i] = time.Since(began)
			}
			require.GreaterOrEqual(t, pauses[0], 50*time.Millisecond, who)
			require.GreaterOrEqual(t, pauses[9], 2500*time.Millisecond, who)
			require.Less(t, pauses[9], 5*time.Second, who)
		}
	})
}
