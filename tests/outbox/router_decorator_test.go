package outbox_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/testdb"
)

// stamp is another decorator: it marks what passes, and fails if it is told to.
type stamp struct {
	message.Publisher
	passed atomic.Int64
	fail   func(call int) error
	ids    [][]string
}

func (s *stamp) decorate(next message.Publisher) (message.Publisher, error) {
	s.Publisher = next
	return s, nil
}

func (s *stamp) Publish(topic string, msgs ...*message.Message) error {
	for _, m := range msgs {
		m.Metadata.Set("stamp", "yes")
	}
	s.ids = append(s.ids, uuids(msgs))
	if err := s.fail(int(s.passed.Add(1))); err != nil {
		return err
	}
	return s.Publisher.Publish(topic, msgs...)
}

func decorators(t *testing.T, db *testdb.DB) {
	// A decorator that was added first is the outermost.
	orders := map[string]func(o *office, other *stamp) []message.PublisherDecorator{
		"outside of it": func(o *office, other *stamp) []message.PublisherDecorator {
			return []message.PublisherDecorator{other.decorate, o.out.Decorate}
		},
		"inside of it": func(o *office, other *stamp) []message.PublisherDecorator {
			return []message.PublisherDecorator{o.out.Decorate, other.decorate}
		},
	}
	o := newOffice(t, db) // strict: for a decorator there is no transaction
	for name, order := range orders {
		o.each(
			behaviour{"stores what a handler returns, with another decorator " + name, func(o *office) {
				o.decorated(order, name == "outside of it", false)
			}},
			behaviour{"stores it after the inbox, with another decorator " + name, func(o *office) {
				o.decorated(order, name == "outside of it", true)
			}},
		)
	}
	o.each(
		behaviour{"gets the same messages again after a failure, from the inbox", sameAgain},
		behaviour{"stores what is returned while the router closes", func(o *office) {
			ctx, closing := context.WithCancel(o.Context())
			s := o.serve(func(r *message.Router) { r.AddPublisherDecorators(o.out.Decorate) })
			s.router.AddHandler("billing", "orders", s.source, "invoices", o.broker,
				func(m *message.Message) ([]*message.Message, error) {
					closing()
					return carried(ctx, "invoice"), nil
				})
			s.run()
			s.deliver("orders", newOrder())
			assert.Equal(o, []string{"invoice"}, o.stored())
		}},
		behaviour{"never takes the handler's transaction, which is over", func(o *office) {
			s := o.serve(func(r *message.Router) {
				millrace.Inbox{Store: o.store}.AddTo(r)
				r.AddPublisherDecorators(o.out.Decorate)
			})
			s.router.AddHandler("billing", "orders", s.source, "invoices", o.broker,
				func(m *message.Message) ([]*message.Message, error) {
					_, err := inbox.Tx(m.Context())
					return carried(m.Context(), "invoice"), err
				})
			s.run()
			s.deliver("orders", newOrder())
			assert.Equal(o, []string{"invoice"}, o.stored())
		}},
		behaviour{"closes the publisher that it replaces", func(o *office) {
			broker := &closable{Publisher: o.broker, closed: make(chan struct{})}
			out := o.publisher()
			decorated, err := out.Decorate(broker)
			require.NoError(o, err)
			require.NoError(o, decorated.Close())
			<-broker.closed
			require.NoError(o, decorated.Publish("orders", carried(o.Context(), "a")...), "the outbox is open")
			require.NoError(o, out.Close())
			require.ErrorIs(o, decorated.Publish("orders", carried(o.Context(), "b")...), outbox.ErrClosed)
			assert.Equal(o, []string{"a"}, o.stored())
		}},
	)
}

func (o *office) decorated(
	order func(*office, *stamp) []message.PublisherDecorator, stamped, withInbox bool,
) {
	o.Helper()
	other := &stamp{fail: never}
	s := o.serve(func(r *message.Router) {
		r.AddPublisherDecorators(order(o, other)...)
		if withInbox {
			millrace.Inbox{Store: o.store}.AddTo(r)
		}
	})
	runs := s.answer(o.broker, first)
	s.run()
	s.deliver("orders", newOrder())
	assert.Equal(o, 2, runs(), "a run that fails stores nothing")
	assert.Len(o, o.stored(), 2)
	assert.Zero(o, o.broker.total(), "the publisher is replaced")
	for _, invoice := range o.relayed(2) {
		if stamped {
			assert.Equal(o, "yes", invoice.Metadata.Get("stamp"))
		} else {
			assert.Empty(o, invoice.Metadata.Get("stamp"))
		}
	}
	if stamped {
		assert.EqualValues(o, 1, other.passed.Load())
	} else {
		assert.Zero(o, other.passed.Load(), "what is further in is replaced too")
	}
}

// sameAgain: the handler has run and is committed when the router fails to publish.
func sameAgain(o *office) {
	other := &stamp{fail: first}
	s := o.serve(func(r *message.Router) {
		r.AddPublisherDecorators(other.decorate, o.out.Decorate)
		millrace.Inbox{Store: o.store}.AddTo(r)
	})
	runs := s.answer(o.broker, never)
	s.run()
	s.deliver("orders", newOrder())
	assert.Equal(o, 1, runs())
	require.Len(o, other.ids, 2)
	assert.Equal(o, other.ids[0], other.ids[1], "the redelivery returns the same messages")
	assert.Equal(o, other.ids[0], o.stored())
}
