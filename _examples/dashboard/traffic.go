package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub"
)

// handlers adds what the service does. A part of it fails.
func (s *service) handlers() error {
	if _, err := s.consume("billing", "orders", bill, pubsub.StoreOnFailure); err != nil {
		return err
	}
	if _, err := s.consume("shipping", "invoices", ship, pubsub.StoreOnFailure); err != nil {
		return err
	}
	list, err := s.consume("order-list", "changes", note, pubsub.StoreFirst)
	if err == nil {
		list.AddMiddleware(millrace.VersionGate{}.Middleware)
	}
	return err
}

func bill(msg *message.Message) ([]*message.Message, error) {
	if _, err := inbox.Tx(msg.Context()); err != nil {
		return nil, err
	}
	switch n := rand.IntN(100); {
	case n < 4:
		return nil, inbox.Terminal(fmt.Errorf("customer %d has no account", rand.IntN(1000)))
	case n < 6:
		return nil, inbox.Terminal(errors.New(`the bank said "card expired"`))
	case n < 20:
		return nil, errors.New("the bank does not answer")
	}
	invoice := message.NewMessage(watermill.NewUUID(), msg.Payload)
	invoice.Metadata.Set("name", "Invoiced")
	return []*message.Message{invoice}, nil
}

func ship(msg *message.Message) ([]*message.Message, error) {
	if _, err := inbox.Tx(msg.Context()); err != nil {
		return nil, err
	}
	if rand.IntN(40) == 0 {
		return nil, inbox.Terminal(fmt.Errorf("no stock of article %d", rand.IntN(50)))
	}
	return nil, nil
}

func note(msg *message.Message) ([]*message.Message, error) {
	_, err := inbox.Tx(msg.Context())
	return nil, err
}

// pedant is a broker that refuses some messages for good, so that the relay gives up on them.
type pedant struct{ message.Publisher }

func (p pedant) Publish(topic string, msgs ...*message.Message) error {
	for _, msg := range msgs {
		if rand.IntN(150) == 0 {
			return outbox.Permanent(errors.New("the message has no routing key"))
		}
		if err := p.Publisher.Publish(topic, msg); err != nil {
			return err
		}
	}
	return nil
}

// traffic publishes orders and changes until ctx ends: some changes are lost on their way,
// and what comes behind them is held.
func (s *service) traffic(ctx context.Context) error {
	versions := make(map[string]int64)
	for n := 1; ; n++ {
		order := message.NewMessage(watermill.NewUUID(), fmt.Appendf(nil, `{"order": %d, "customer": %d}`, n, rand.IntN(1000)))
		order.Metadata.Set("name", "OrderPlaced")
		change := message.NewMessage(watermill.NewUUID(), order.Payload)
		aggregate := fmt.Sprintf("order-%d", rand.IntN(200))
		versions[aggregate]++
		outbox.Stamp(change, aggregate, versions[aggregate])
		if rand.IntN(60) > 0 {
			if err := s.broker.Publish("changes", change); err != nil {
				return err
			}
		}
		if err := s.broker.Publish("orders", order); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Duration(20+rand.IntN(60)) * time.Millisecond):
		}
	}
}
