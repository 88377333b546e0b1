package outbox_test

import (
	"context"
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/testdb"
)

// cqrsBodies: Watermill's buses, built once and unchanged.
var cqrsBodies = []testdb.Body{
	{
		Name: "the CQRS buses", Run: buses,
		Why: "they put the caller's context into each message, and with it the transaction",
	},
}

type (
	orderPlaced   struct{ Order string }
	stockReserved struct{ Order string }
	sendInvoice   struct{ Order string }
)

// shop is what a service builds when it starts.
type shop struct {
	events    *cqrs.EventBus
	commands  *cqrs.CommandBus
	marshaler cqrs.CommandEventMarshaler
}

func newShop(o *office) shop {
	o.Helper()
	s := shop{marshaler: cqrs.JSONMarshaler{GenerateName: cqrs.StructName}}
	var err error
	s.events, err = cqrs.NewEventBusWithConfig(o.out, cqrs.EventBusConfig{
		Marshaler: s.marshaler,
		GeneratePublishTopic: func(p cqrs.GenerateEventPublishTopicParams) (string, error) {
			return "events." + p.EventName, nil
		},
	})
	require.NoError(o, err)
	s.commands, err = cqrs.NewCommandBusWithConfig(o.out, cqrs.CommandBusConfig{
		Marshaler: s.marshaler,
		GeneratePublishTopic: func(p cqrs.CommandBusGeneratePublishTopicParams) (string, error) {
			return "commands." + p.CommandName, nil
		},
	})
	require.NoError(o, err)
	return s
}

// reserve is an event handler: it writes, tells of it, and wants something else done.
func (s shop) reserve(ctx context.Context, e *orderPlaced) error {
	tx, err := inbox.Tx(ctx)
	if err != nil {
		return err
	}
	return errors.Join(
		work(ctx, tx),
		s.events.Publish(ctx, stockReserved(*e)),
		s.commands.Send(ctx, sendInvoice(*e)),
	)
}

func buses(t *testing.T, db *testdb.DB) {
	o := newOffice(t, db)
	s := newShop(o)
	both := []string{"commands.sendInvoice sendInvoice", "events.stockReserved stockReserved"}
	o.each(
		behaviour{"in InTx", func(o *office) {
			place := func(fail error) error {
				return outbox.InTx(o.Context(), o.db.DB, func(ctx context.Context, _ *sqlx.Tx) error {
					return errors.Join(s.reserve(ctx, &orderPlaced{"7"}), fail)
				})
			}
			require.ErrorIs(o, place(errRefused), errRefused)
			assert.Empty(o, o.addressed())
			require.NoError(o, place(nil))
			assert.Equal(o, both, o.addressed())
			assert.Equal(o, 1, o.worked())
		}},
		behaviour{"in an HTTP handler's transaction", func(o *office) {
			tx := o.begin().tx
			ctx := outbox.WithTx(o.Context(), tx)
			require.NoError(o, s.events.Publish(ctx, stockReserved{"7"}))
			require.NoError(o, s.commands.Send(ctx, sendInvoice{"7"}))
			require.NoError(o, tx.Commit())
			assert.Equal(o, both, o.addressed())
		}},
		behaviour{"without a transaction", func(o *office) {
			require.ErrorIs(o, s.events.Publish(o.Context(), stockReserved{"7"}), outbox.ErrNoTx)
			require.ErrorIs(o, s.commands.Send(o.Context(), sendInvoice{"7"}), outbox.ErrNoTx)
		}},
		behaviour{"in a handler of an event", func(o *office) {
			runs := 0
			service := o.serve(millrace.Inbox{Store: o.store, Options: inbox.Options{RequireTx: true}}.AddTo)
			service.handleEvents(s, cqrs.NewEventHandler("stock", func(ctx context.Context, e *orderPlaced) error {
				runs++
				if runs == 1 {
					return errors.Join(s.reserve(ctx, e), errRefused)
				}
				return s.reserve(ctx, e)
			}))
			service.run()
			m, err := s.marshaler.Marshal(orderPlaced{"7"})
			require.NoError(o, err)
			service.deliver("events.orderPlaced", m) // fails, and comes again
			service.deliver("events.orderPlaced", m.Copy())
			assert.Equal(o, 2, runs)
			assert.Equal(o, both, o.addressed(), "of the run that succeeded, once")
			assert.Equal(o, 1, o.worked())
			for _, got := range o.relayed(2) {
				switch name := s.marshaler.NameFromMessage(got); name {
				case "stockReserved":
					var e stockReserved
					require.NoError(o, s.marshaler.Unmarshal(got, &e))
					assert.Equal(o, stockReserved{"7"}, e)
				default:
					assert.Equal(o, "sendInvoice", name)
				}
			}
		}},
	)
}

// addressed are topic and event type of what is stored.
func (o *office) addressed() []string {
	o.Helper()
	all := []string{}
	require.NoError(o, o.db.SelectContext(o.Context(), &all, map[bool]string{
		false: `SELECT topic || ' ' || event_type FROM millrace_outbox ORDER BY topic`,
		true:  `SELECT CONCAT(topic, ' ', event_type) FROM millrace_outbox ORDER BY topic`,
	}[o.db.Dialect == "mysql"]))
	return all
}

// handleEvents adds a handler of events to the service.
func (s *service) handleEvents(shop shop, handler cqrs.EventHandler) {
	s.Helper()
	processor, err := cqrs.NewEventProcessorWithConfig(s.router, cqrs.EventProcessorConfig{
		Marshaler: shop.marshaler,
		GenerateSubscribeTopic: func(p cqrs.EventProcessorGenerateSubscribeTopicParams) (string, error) {
			return "events." + p.EventName, nil
		},
		SubscriberConstructor: func(cqrs.EventProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return s.source, nil
		},
	})
	require.NoError(s, err)
	require.NoError(s, processor.AddHandlers(handler))
}
