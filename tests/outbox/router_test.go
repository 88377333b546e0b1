package outbox_test

import (
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// routerBodies: what handlers return to a router.
var routerBodies = []testdb.Body{
	{
		Name: "Inbox.Outbox", Run: inboxOutbox,
		Why: "what a handler returns is stored in its transaction, and the router has nothing to publish",
	},
	{
		Name: "a publisher decorator", Run: decorators,
		Why: "what a router would publish is stored, after the handler's commit",
	},
}

// service is a router fed by a channel that delivers again what is nacked.
type service struct {
	*office
	router *message.Router
	source *gochannel.GoChannel
}

func (o *office) serve(configure func(*message.Router)) *service {
	o.Helper()
	s := &service{office: o, source: gochannel.NewGoChannel(
		gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})}
	var err error
	s.router, err = message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, o.log)
	require.NoError(o, err)
	configure(s.router)
	return s
}

func (s *service) run() {
	s.Helper()
	stopped := rig.Run(s, s.router)
	s.Cleanup(func() {
		assert.NoError(s, s.router.Close())
		assert.NoError(s, <-stopped)
		assert.NoError(s, s.source.Close())
	})
}

// deliver returns when m is acked.
func (s *service) deliver(topic string, m *message.Message) {
	s.Helper()
	acked := make(chan error, 1)
	go func() { acked <- s.source.Publish(topic, m) }()
	require.NoError(s, rig.Within(s, acked, "the message was not acked"))
}

// answer adds a handler from orders to invoices that answers an order with two invoices,
// unless fail says otherwise, and counts its runs.
func (s *service) answer(to message.Publisher, fail func(run int) error) (runs func() int) {
	s.Helper()
	var mu sync.Mutex
	n := 0
	s.router.AddHandler("billing", "orders", s.source, "invoices", to,
		func(m *message.Message) ([]*message.Message, error) {
			mu.Lock()
			defer mu.Unlock()
			n++
			invoices := carried(m.Context(), watermill.NewUUID(), watermill.NewUUID())
			return invoices, fail(n)
		})
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		return n
	}
}

func never(int) error { return nil }

func first(run int) error {
	if run == 1 {
		return errRefused
	}
	return nil
}

func inboxOutbox(t *testing.T, db *testdb.DB) {
	newOffice(t, db).each(
		behaviour{"stores what is returned, with what middlewares further in add", func(o *office) {
			s := o.serve(func(r *message.Router) {
				r.AddPlugin(o.store.Plugin())
				r.AddMiddleware(millrace.Inbox{Store: o.store, Outbox: o.out, Options: inbox.Options{RequireTx: true}}.Middleware, middleware.CorrelationID)
			})
			runs := s.answer(o.broker, never)
			s.run()
			m := newOrder()
			middleware.SetCorrelationID("correlation-7", m)
			s.deliver("orders", m)
			s.deliver("orders", m.Copy())
			assert.Equal(o, 1, runs())
			assert.Zero(o, o.broker.count(), "the router publishes nothing")
			stored := o.stored()
			require.Len(o, stored, 2)
			for _, invoice := range o.relayed(2) {
				assert.Contains(o, stored, invoice.UUID)
				assert.Equal(o, "correlation-7", middleware.MessageCorrelationID(invoice))
			}
			assert.Equal(o, []string{"invoices", "invoices"}, o.broker.topics)
		}},
		behaviour{"stores nothing of a run that fails", func(o *office) {
			s := o.serve(func(r *message.Router) {
				r.AddPlugin(o.store.Plugin())
				r.AddMiddleware(millrace.Inbox{Store: o.store, Outbox: o.out}.Middleware)
			})
			runs := s.answer(o.broker, first)
			s.run()
			s.deliver("orders", newOrder())
			assert.Equal(o, 2, runs())
			assert.Len(o, o.stored(), 2)
			assert.Zero(o, o.broker.count())
		}},
		behaviour{"stores nothing where they cannot be stored", func(o *office) {
			s := o.serve(func(r *message.Router) {
				r.AddPlugin(o.store.Plugin())
				r.AddMiddleware(millrace.Inbox{Store: o.store, Outbox: o.out}.Middleware)
			})
			run := 0
			s.router.AddHandler("shipping", "orders", s.source, "parcels", o.broker,
				func(m *message.Message) ([]*message.Message, error) {
					if run++; run == 1 {
						return carried(o.Context(), "invoice", ""), nil // the second has no UUID
					}
					return nil, nil
				})
			s.run()
			s.deliver("orders", newOrder())
			assert.Equal(o, 2, run, "an error of Publish is one of the run")
			assert.Empty(o, o.stored())
		}},
	)
}
