package main

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub"
)

const (
	orders = "orders"      // the topic of what is to be charged
	dead   = "dead-orders" // the topic of what was given up
)

type service struct {
	store  *inbox.Store
	broker broker
	router *message.Router
	relay  *outbox.Relay
}

// newService wires broker → Durable → inbox → handler, and outbox → relay → broker for the
// dead letters.
func newService(db *sqlx.DB, b broker, charge, bury message.NoPublishHandlerFunc, o inbox.Observer) (*service, error) {
	store, err := inbox.NewStore(db, inbox.Config{Observers: []inbox.Observer{o}})
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
	sub, err := pubsub.Durable{
		Store:       store,
		Consumer:    "charge",
		MaxAttempts: 3,
		MinBackoff:  200 * time.Millisecond, // the default is 1 s
		MaxBackoff:  time.Second,            // and 5 min
		OnPark: func(msg *message.Message, reason string) error { // in the transaction that parks it
			letter := message.NewMessageWithContext(msg.Context(), watermill.NewUUID(), msg.Payload)
			letter.Metadata.Set("reason", reason)
			return out.Publish(dead, letter)
		},
	}.Decorate(b)
	if err != nil {
		return nil, err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	millrace.Inbox{Store: store}.AddTo(router)
	router.AddConsumerHandler("charge", orders, sub, charge)
	router.AddConsumerHandler("bury", dead, b, bury)
	return &service{store, b, router, relay}, nil
}

// start returns when messages are delivered, and a function that ends the service.
func (s *service) start() (stop func() error, err error) {
	stopped := make(chan error, 2)
	go func() { stopped <- s.router.Run(context.Background()) }()
	select {
	case err := <-stopped: // it did not start
		return nil, err
	case <-s.router.Running():
	}
	relaying, cancel := context.WithCancel(context.Background())
	go func() { stopped <- s.relay.Run(relaying) }()
	return func() error {
		cancel()
		err := errors.Join(s.router.Close(), <-stopped, <-stopped)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		return errors.Join(err, s.store.Close(ctx))
	}, nil
}

// parked lists what waits for an operator: terminal failures first.
func (s *service) parked(ctx context.Context) ([]admin.Message, error) {
	terminal, err := admin.New(s.store).Find(ctx, admin.Filter{Status: admin.FailedTerminal}, 0, 100)
	if err != nil {
		return nil, err
	}
	tired, err := admin.New(s.store).Find(ctx, admin.Filter{Status: admin.Parked}, 0, 100)
	return append(terminal, tired...), err
}

// open counts the messages that are not completed, whatever their state.
func (s *service) open(ctx context.Context) (n int, err error) {
	for status := admin.Received; status <= admin.Held && err == nil; status++ {
		var open []admin.Message
		open, err = admin.New(s.store).Find(ctx, admin.Filter{Status: status}, 0, 100)
		n += len(open)
	}
	return n, err
}

// retry has a parked message handled again.
func (s *service) retry(ctx context.Context, m admin.Message) error {
	by := admin.Operator{Name: "ann", Reason: "the customer was missing"}
	return admin.New(s.store).Retry(ctx, m.ID, by, nil)
}

// discard gives a parked message up for good.
func (s *service) discard(ctx context.Context, m admin.Message) error {
	return admin.New(s.store).Discard(ctx, m.ID, admin.Operator{Name: "ann", Reason: "the amount is no number"})
}
