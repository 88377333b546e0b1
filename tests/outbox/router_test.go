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
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// routerBodies: what handlers return to a router.
var routerBodies = []testdb.Body{
	{Name: "Inbox.Outbox", Why: "what a handler returns is stored in its transaction, and the router has nothing to publish", Run: func(t *testing.T, db *testdb.DB) {
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
				assert.Zero(o, o.broker.total(), "the router publishes nothing")
				stored := o.stored()
				require.Len(o, stored, 2)
				for _, invoice := range o.relayed(2) {
					assert.Contains(o, stored, invoice.UUID)
					assert.Equal(o, "correlation-7", middleware.MessageCorrelationID(invoice))
				}
				assert.Equal(o, []string{"invoices", "invoices"}, o.broker.topics)
			}},
			behaviour{"stores nothing of a run that fails", func(o *office) {
				s := o.serve(millrace.Inbox{Store: o.store, Outbox: o.out}.AddTo)
				runs := s.answer(o.broker, first)
				s.run()
				s.deliver("orders", newOrder())
				assert.Equal(o, 2, runs())
				assert.Len(o, o.stored(), 2)
				assert.Zero(o, o.broker.total())
			}},
			behaviour{"stores nothing where they cannot be stored", func(o *office) {
				s := o.serve(millrace.Inbox{Store: o.store, Outbox: o.out}.AddTo)
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
	}},
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

// A router closes its handlers' publishers before the handlers that run have returned. Where
// the outbox is such a publisher, they must still be able to store what they return, and so
// must the rest of the service that shares it.
func TestAHandlerInFlightFinishesAfterTheRouterClosedTheOutbox(t *testing.T) {
	t.Parallel()
	p := newPost(t, testdb.On(t, "sqlite"))
	store := rig.NewStore(t, p.db.DB, inbox.Config{})
	channel := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	out := &closable{Publisher: p.out, closed: make(chan struct{})}
	router := rig.NewRouter(t)
	millrace.Inbox{Store: store, Outbox: p.out}.AddTo(router)
	running := make(chan struct{})
	router.AddHandler("billing", "orders", channel, "invoices", out,
		func(msg *message.Message) ([]*message.Message, error) {
			close(running) // a second run would panic
			<-out.closed
			return []*message.Message{message.NewMessage("invoice", msg.Payload)}, nil
		})
	stopped := rig.Run(t, router)
	require.NoError(t, channel.Publish("orders", message.NewMessage("order", nil)))
	<-running
	require.NoError(t, router.Close())
	require.NoError(t, <-stopped)
	require.NoError(t, store.Close(t.Context()))
	require.Equal(t, 1, p.rows(), "the invoice is stored")
}

// closable tells when the router closes it.
type closable struct {
	message.Publisher
	closed chan struct{}
}

func (c *closable) Close() error {
	err := c.Publisher.Close()
	close(c.closed)
	return err
}

func TestAClosedOutboxCommitsNothingByItself(t *testing.T) {
	t.Parallel()
	p := newPost(t, testdb.On(t, "sqlite")) // standalone
	require.NoError(t, p.out.Close())
	require.ErrorIs(t, p.out.Publish("orders", letters("", 1)...), outbox.ErrClosed)
	require.Zero(t, p.rows())
	p.send("orders", "", 1)
	require.Equal(t, 1, p.rows(), "a transaction is not the publisher's to end")
}
