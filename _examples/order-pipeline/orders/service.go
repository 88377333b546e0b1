// Package orders takes orders by HTTP, publishes them, and learns what became of them.
package orders

import (
	"context"
	_ "embed"
	"errors"
	"net"
	"net/http"
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
	Listener  net.Listener // for HTTP
	Observers []inbox.Observer
}

// Service is the order service.
type Service struct {
	db        *sqlx.DB
	store     *inbox.Store
	out       *outbox.Publisher
	publisher *rabbitmq.Publisher
	relay     *outbox.Relay
	router    *message.Router
	server    *http.Server
	listener  net.Listener
}

// New returns a service whose tables and queues are there.
func New(ctx context.Context, config Config) (s *Service, err error) {
	s = &Service{db: config.DB, listener: config.Listener}
	s.server = &http.Server{Handler: s.routes(), ReadHeaderTimeout: 10 * time.Second}
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
	if err := subscriber.SubscribeInitialize(events.Fulfilment); err != nil {
		return err
	}
	if s.router, err = message.NewRouter(message.RouterConfig{}, nil); err != nil {
		return err
	}
	millrace.Inbox{Store: s.store}.AddTo(s.router)
	s.router.AddConsumerHandler("results", events.Fulfilment, subscriber, record)
	return nil
}

// Run serves until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	group, running := errgroup.WithContext(ctx)
	group.Go(func() error { return s.relay.Run(running) })
	group.Go(func() error { return s.router.Run(running) })
	group.Go(func() error {
		if err := s.server.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	last := context.WithoutCancel(ctx)
	group.Go(func() error {
		<-running.Done()
		ctx, cancel := context.WithTimeout(last, 10*time.Second)
		defer cancel()
		return s.server.Shutdown(ctx)
	})
	err := group.Wait()

	ctx, cancel := context.WithTimeout(last, 10*time.Second)
	defer cancel()
	return errors.Join(err, s.store.Close(ctx), s.publisher.Close())
}

// record notes what became of an order. There is one result for each, so that it does not
// matter in which order the results come.
func record(msg *message.Message) error {
	event, err := events.Of(msg)
	if err != nil {
		return err
	}
	ctx := msg.Context()
	tx, err := inbox.Tx(ctx)
	if err != nil {
		return err
	}
	switch e := event.(type) {
	case events.OrderRejected:
		_, err = tx.ExecContext(ctx, `UPDATE orders SET status = 'rejected' WHERE id = $1`, e.Order)
	case events.InvoiceIssued:
		_, err = tx.ExecContext(ctx, `UPDATE orders SET status = 'invoiced' WHERE id = $1`, e.Order)
		if err == nil {
			_, err = tx.ExecContext(ctx, `INSERT INTO invoice_received VALUES ($1, $2)`, e.Order, e.Amount)
		}
	}
	return err
}
