package durable_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestARefusedMessageComesAgainAfterPauses: gochannel delivers again at once what was nacked.
func TestARefusedMessageComesAgainAfterPauses(t *testing.T) {
	for name, c := range map[string]struct {
		before *inbox.Key // of the consumer
		key    inbox.Key  // of Inbox
		text   string
	}{
		"a consumer whose key changed":                         {before: &byOrder, text: "the consumer's key changed"},
		"a key that only Durable finds, with a key of its own": {before: &byOrder, key: byOrder, text: "the consumer's key changed"},
		"a key that cannot be looked for": {
			key: inbox.ByFunc("claim check", func(*message.Message) (string, error) {
				return "", fmt.Errorf("the store of large payloads: %w", inbox.ErrUnavailable)
			}),
			text: "the store of large payloads",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, testdb.On(t, "sqlite"))
			if c.before != nil {
				_, err := millrace.Inbox{Store: b.store, Consumer: consumer, Key: *c.before}.Middleware(
					func(*message.Message) ([]*message.Message, error) { return nil, nil })(order("good", 1))
				require.NoError(t, err)
			}
			source := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
			sub, err := pubsub.Durable{Store: b.store, Consumer: consumer}.Decorate(source)
			require.NoError(t, err)
			router := rig.NewRouter(t)
			router.AddPlugin(b.store.Plugin())
			refused := make(chan error, 1000)
			router.AddMiddleware(func(h message.HandlerFunc) message.HandlerFunc {
				return func(msg *message.Message) ([]*message.Message, error) {
					out, err := h(msg)
					refused <- err
					return out, err
				}
			})
			router.AddMiddleware(millrace.Inbox{Store: b.store, Key: c.key}.Middleware)
			router.AddConsumerHandler(consumer, "orders", sub, effect)
			go func() { _ = router.Run(t.Context()) }()
			<-router.Running()
			t.Cleanup(func() { _ = router.Close() })
			began := time.Now()
			require.NoError(t, source.Publish("orders", broken("bad")))
			for range 5 {
				require.ErrorContains(t, <-refused, c.text)
			}
			assert.Greater(t, time.Since(began), 500*time.Millisecond, "after pauses that grow")
			assert.Zero(t, b.count(`SELECT COUNT(*) FROM effects`))
		})
	}
}
