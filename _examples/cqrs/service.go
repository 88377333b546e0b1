package main

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
)

// broker is both ends of a message broker.
type broker interface {
	message.Publisher
	message.Subscriber
}

type service struct {
	*hotel
	router *message.Router
	store  *inbox.Store
	out    *outbox.Publisher
	relay  *outbox.Relay
}

// newService wires the hotel: buses → outbox → relay → broker → router with the inbox →
// handlers. The buses are built once, whatever transaction they are used in later.
func newService(db *sqlx.DB, b broker, config inbox.Config) (*service, error) {
	store, err := inbox.NewStore(db, config)
	if err != nil {
		return nil, err
	}
	if err := store.Migrate(context.Background()); err != nil { // the outbox's tables too
		return nil, err
	}
	out, err := outbox.NewPublisher(db, outbox.Config{})
	if err != nil {
		return nil, err
	}
	relay, err := outbox.NewRelay(db, b, outbox.RelayConfig{})
	if err != nil {
		return nil, err
	}
	h, err := newHotel(db, out)
	if err != nil {
		return nil, err
	}
	router, err := message.NewRouter(message.RouterConfig{}, config.Logger)
	if err != nil {
		return nil, err
	}
	millrace.Inbox{Store: store}.AddTo(router)
	return &service{hotel: h, router: router, store: store, out: out, relay: relay}, h.handle(router, b)
}

var marshaler = cqrs.JSONMarshaler{GenerateName: cqrs.StructName}

func newHotel(db *sqlx.DB, out *outbox.Publisher) (*hotel, error) {
	commands, err := cqrs.NewCommandBusWithConfig(out, cqrs.CommandBusConfig{
		GeneratePublishTopic: func(p cqrs.CommandBusGeneratePublishTopicParams) (string, error) {
			return p.CommandName, nil
		},
		Marshaler: marshaler,
	})
	if err != nil {
		return nil, err
	}
	events, err := cqrs.NewEventBusWithConfig(out, cqrs.EventBusConfig{
		GeneratePublishTopic: func(p cqrs.GenerateEventPublishTopicParams) (string, error) {
			return p.EventName, nil
		},
		Marshaler: marshaler,
	})
	return &hotel{db: db, commands: commands, events: events}, err
}

// handle adds the handlers. Their names are those of the inbox's consumers: each handler of
// an event remembers for itself what it has handled.
func (h *hotel) handle(router *message.Router, b broker) error {
	commands, err := cqrs.NewCommandProcessorWithConfig(router, cqrs.CommandProcessorConfig{
		GenerateSubscribeTopic: func(p cqrs.CommandProcessorGenerateSubscribeTopicParams) (string, error) {
			return p.CommandName, nil
		},
		SubscriberConstructor: func(cqrs.CommandProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return b, nil
		},
		Marshaler: marshaler,
	})
	if err != nil {
		return err
	}
	events, err := cqrs.NewEventProcessorWithConfig(router, cqrs.EventProcessorConfig{
		GenerateSubscribeTopic: func(p cqrs.EventProcessorGenerateSubscribeTopicParams) (string, error) {
			return p.EventName, nil
		},
		SubscriberConstructor: func(cqrs.EventProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return b, nil
		},
		Marshaler: marshaler,
	})
	if err != nil {
		return err
	}
	return errors.Join(
		commands.AddHandlers(
			cqrs.NewCommandHandler("book-room", h.bookRoom),
			cqrs.NewCommandHandler("order-beer", h.orderBeer),
		),
		events.AddHandlers(
			cqrs.NewEventHandler("welcome", h.welcome),
			cqrs.NewEventHandler("report-booking", h.reportBooking),
			cqrs.NewEventHandler("report-beer", h.reportBeer),
		),
	)
}

// run works until ctx ends. The relay is there only while the router is: what is published
// to a gochannel that nobody has subscribed to is lost.
func (s *service) run(ctx context.Context) error {
	stopped := make(chan error, 1)
	go func() { stopped <- s.router.Run(context.WithoutCancel(ctx)) }()
	select {
	case err := <-stopped: // it did not start
		return err
	case <-s.router.Running():
	}
	err := s.relay.Run(ctx)
	err = errors.Join(err, s.router.Close(), <-stopped)

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return errors.Join(err, s.store.Close(ctx))
}
