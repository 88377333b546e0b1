// Package events is what the services tell each other, and how.
package events

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/pubsub/rabbitmq"
)

// Topics, each named for the service that publishes to it.
const (
	Orders     = "orders"
	Fulfilment = "fulfilment"
)

// OrderPlaced is published to [Orders].
type OrderPlaced struct {
	Order    int64 `json:"order"`
	Item     int   `json:"item"`
	Quantity int   `json:"quantity"`
}

// OrderRejected is published to [Fulfilment]: the order gets neither goods nor an invoice.
type OrderRejected struct {
	Order  int64  `json:"order"`
	Reason string `json:"reason"`
}

// InvoiceIssued is published to [Fulfilment]: the goods are reserved.
type InvoiceIssued struct {
	Order  int64 `json:"order"`
	Amount int64 `json:"amount"`
}

// typeField is the metadata field of Watermill's CQRS component for the type of an event.
// The outbox shows it in its column event_type.
const typeField = "name"

// New returns a message about event. An outbox stores it in the transaction that ctx
// carries.
func New[E OrderPlaced | OrderRejected | InvoiceIssued](ctx context.Context, event E) (*message.Message, error) {
	payload, err := json.Marshal(event)
	if err != nil {
		return nil, err
	}
	msg := message.NewMessageWithContext(ctx, watermill.NewUUID(), payload)
	msg.Metadata.Set(typeField, fmt.Sprintf("%T", event))
	return msg, nil
}

// Of returns the event that msg is about.
func Of(msg *message.Message) (any, error) {
	switch name := msg.Metadata.Get(typeField); name {
	case "events.OrderPlaced":
		return decode[OrderPlaced](msg)
	case "events.OrderRejected":
		return decode[OrderRejected](msg)
	case "events.InvoiceIssued":
		return decode[InvoiceIssued](msg)
	default:
		return nil, fmt.Errorf("message %s is of the unknown type %q", msg.UUID, name)
	}
}

func decode[E any](msg *message.Message) (event E, err error) {
	if err := json.Unmarshal(msg.Payload, &event); err != nil {
		return event, fmt.Errorf("message %s: %w", msg.UUID, err)
	}
	return event, nil
}

// Broker says how a service finds its messages on RabbitMQ: in quorum queues of its own,
// which keep what cannot be handled as dead letters. Prefix starts the names of exchanges
// and queues.
func Broker(uri, prefix, service string) amqp.Config {
	c := rabbitmq.NewPubSubConfig(uri, service, rabbitmq.Queues{
		Quorum: true, DeadLetters: true,
		DeliveryLimit: 10_000, // 20, the default, are used up when the database is away for a minute
	})
	exchange, queue := c.Exchange.GenerateName, c.Queue.GenerateName
	c.Exchange.GenerateName = func(topic string) string { return prefix + exchange(topic) }
	c.Queue.GenerateName = func(topic string) string { return prefix + queue(topic) }
	return c
}
