// Package fulfilment reserves stock for orders and issues invoices.
package fulfilment

import (
	"context"
	_ "embed"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"golang.org/x/sync/errgroup"

	"order-pipeline/events"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub/rabbitmq"
)

//go:embed schema.sql
var schema string

// Config is what the service needs to know.
type Config struct {
	DB        *sqlx.DB
	Broker    amqp.Config
	Observers []inbox.Observer
}

// Service is the stock and billing service.
type Service struct {
	db        *sqlx.DB
	store     *inbox.Store
	out       *outbox.Publisher
	publisher *rabbitmq.Publisher
	relay     *outbox.Relay
	router    *message.Router
}

// New returns a service whose tables and queues are there.
func New(ctx context.Context, config Config) (s *Service, err error) {
	s = &Service{db: config.DB}
	if _, err := s.db.ExecContext(ctx, schema); err != nil {
		return nil, err
	}
	if s.store, err = inbox.NewStore(s.db, inbox.Config{Observers: config.Observers}); err != nil {
		return nil, err
	}
	if err := s.store.Migrate(ctx); err != nil { // the outbox's tables too
		return nil, err
	}
	if err := s.send(config.Broker); err != nil {
		return nil, err
	}
	return s, s.receive(config.Broker)
}

// send prepares what is needed to publish.
func (s *Service) send(broker amqp.Config) (err error) {
	if s.out, err = outbox.NewPublisher(s.db, outbox.Config{}); err != nil {
		return err
	}
	if s.publisher, err = rabbitmq.NewPublisher(broker, rabbitmq.PublisherConfig{}); err != nil {
		return err
	}
	s.relay, err = outbox.NewRelay(s.db, s.publisher, outbox.RelayConfig{
		Lease: 2 * time.Second, // after which a killed relay is replaced: the default is 15 s
	})
	return err
}

// receive prepares what is needed to subscribe.
func (s *Service) receive(broker amqp.Config) error {
	subscriber, err := rabbitmq.NewSubscriber(broker, rabbitmq.SubscriberConfig{InFlight: 8})
	if err != nil {
		return err
	}
	// RabbitMQ keeps nothing for a queue that is not there, so it must be before an order is.
	if err := subscriber.SubscribeInitialize(events.Orders); err != nil {
		return err
	}
	if s.router, err = message.NewRouter(message.RouterConfig{}, nil); err != nil {
		return err
	}
	millrace.Inbox{Store: s.store, Outbox: s.out}.AddTo(s.router)
	s.router.AddHandler("fulfil", events.Orders, subscriber, events.Fulfilment, s.out, fulfil)
	return nil
}

// Run works until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	group, running := errgroup.WithContext(ctx)
	group.Go(func() error { return s.relay.Run(running) })
	group.Go(func() error { return s.router.Run(running) })
	err := group.Wait()

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return errors.Join(err, s.store.Close(ctx), s.publisher.Close())
}
