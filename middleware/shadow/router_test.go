package shadow_test

import (
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/shadow"
)

// Two routers get one stream. What the watched one does, and what it publishes, is what the
// other does and publishes: each copy has its effect, each failure comes again.
func TestRouterDoesTheSame(t *testing.T) {
	t.Parallel()
	s := dirty
	s.aggregates, s.versions, s.displaced = 20, 20, 50
	all, made := s.deliveries(5)
	w, err := shadow.New(rude(panics{}))
	require.NoError(t, err)

	without, with := routed(t, all), routed(t, all, w.Middleware)
	require.Greater(t, len(without.runs), len(all), "failures come again")
	assert.Equal(t, without, with)

	r := w.Report()
	require.Len(t, r.Consumers, 2)
	c := r.Consumers[1]
	assert.Equal(t, "orders", c.Name)
	assert.Equal(t, len(with.runs), c.Deliveries)
	k := key(t, c, "uuid")
	assert.Equal(t, []int{made.copies + made.failures, made.reuses}, []int{k.Duplicates, k.Collisions})
	assert.Equal(t, made.failures, c.Failures)
	assert.Equal(t, c.Failures, k.Retries)
}

// done is what a router did: its handler's runs, and what it published, in order.
type done struct {
	runs, published []string
}

func routed(t *testing.T, all []delivery, middlewares ...message.HandlerMiddleware) (d done) {
	t.Helper()
	logger := watermill.NopLogger{}
	broker := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, logger)
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	require.NoError(t, err)
	router.AddMiddleware(middlewares...)
	failed := map[string]bool{}
	router.AddHandler("orders", "orders", broker, "invoices", broker, func(msg *message.Message) ([]*message.Message, error) {
		d.runs = append(d.runs, fmt.Sprint(msg.UUID, string(msg.Payload), msg.Metadata))
		if msg.Metadata.Get("fails") != "" && !failed[msg.UUID] {
			failed[msg.UUID] = true
			return nil, errRun
		}
		return []*message.Message{message.NewMessage("invoice for "+msg.UUID, msg.Payload)}, nil
	})
	router.AddConsumerHandler("invoices", "invoices", broker, func(msg *message.Message) error {
		d.published = append(d.published, msg.UUID+string(msg.Payload))
		return nil
	})
	stopped := make(chan error)
	go func() { stopped <- router.Run(t.Context()) }()
	<-router.Running()
	for _, delivery := range all {
		msg := delivery.message()
		if delivery.fails {
			msg.Metadata.Set("fails", "once")
		}
		require.NoError(t, broker.Publish("orders", msg)) // until it is acked
	}
	require.NoError(t, router.Close())
	require.NoError(t, <-stopped)
	return d
}
