package durable_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestMessagesOfARefusedHandler: no message is handled until the service is changed, and none is to blame.
func TestMessagesOfARefusedHandler(t *testing.T) {
	testdb.Conformance(t, refusedBodies)
}

// refused are handlers of the consumer that the middleware refuses.
func (b *bed) refused() map[string]message.HandlerFunc {
	b.Helper()
	fine := silent(func(*message.Message) error { return nil })
	other := inbox.ByMetadata("order")
	_, err := b.store.Handler(inbox.ConsumerConfig{Name: consumer, Key: other}, fine)
	require.NoError(b, err)
	_, err = b.store.Leases().Handler(inbox.LeaseConfig{Name: consumer, Key: other}, fine)
	require.NoError(b, err)
	return map[string]message.HandlerFunc{
		"inbox: another handler has the consumer":       b.within(fine),
		"inbox: a wrong setting":                        b.within(fine, inbox.Options{MaxInFlight: -1}),
		"deduplicate: another handler has the consumer": millrace.Deduplicate{Claims: b.store.Leases(), Consumer: consumer}.Middleware(fine),
		"a gate without an inbox":                       millrace.VersionGate{}.Middleware(fine),
	}
}

var refusedBodies = []testdb.Body{
	{Name: "a stored message of a refused handler", Why: "it is no attempt: it would be parked before anybody handled it", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		queue := b.storeIn(inbox.QueueConfig{MaxAttempts: 1}, newMessage())
		for name, h := range b.refused() {
			b.due()
			l, err := b.hands(queue, h)
			require.Error(t, err, name)
			require.NoError(t, l.Fail(t.Context()))
			kept := b.only(b.store, 0)
			assert.Equal(t, admin.FailedRetryable, kept.Status, name)
			assert.Zero(t, kept.Attempts, name)
			assert.NotEmpty(t, kept.LastError, name)
			assert.Contains(t, err.Error(), kept.LastError, name)
		}
	})},
	{Name: "a message that comes straight to a refused handler", Why: "its source keeps it", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		queue := b.queue(b.store)
		for name, h := range b.refused() {
			copied, fail := queue.Straight("orders", newMessage())
			require.Error(t, do(h, copied), name)
			kept, err := fail(t.Context())
			require.NoError(t, err, name)
			assert.False(t, kept, name)
		}
		assert.Zero(t, b.rows())
	})},
}
