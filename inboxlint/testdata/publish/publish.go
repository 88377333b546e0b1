// Package publish has handlers that publish past the outbox, and some that do not.
package publish

import (
	"context"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	. "github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub/rabbitmq"
)

type service struct {
	broker   *rabbitmq.Publisher
	hidden   message.Publisher // always the broker's
	mixed    message.Publisher // either
	given    message.Publisher
	Exported message.Publisher
	out      *outbox.Publisher
	events   *cqrs.EventBus
	direct   *cqrs.EventBus
}

func newService(out *outbox.Publisher, given message.Publisher) (*service, error) {
	publisher, err := amqp.NewPublisher(amqp.Config{}, nil)
	if err != nil {
		return nil, err
	}
	events, err := cqrs.NewEventBusWithConfig(out, cqrs.EventBusConfig{})
	if err != nil {
		return nil, err
	}
	direct, err := cqrs.NewEventBusWithConfig(publisher, cqrs.EventBusConfig{})
	if err != nil {
		return nil, err
	}
	s := &service{
		hidden: publisher, mixed: publisher, given: given, out: out, events: events, direct: direct,
		Exported: gochannel.NewGoChannel(gochannel.Config{}, nil),
	}
	if out != nil {
		s.mixed = out
	}
	return s, nil
}

func (s *service) handle(msg *message.Message) error {
	ctx := msg.Context()
	tx, err := Tx(ctx)
	if err != nil {
		return err
	}
	_ = tx
	event := message.NewMessageWithContext(ctx, watermill.NewUUID(), nil)
	publish := s.broker.Publish
	for _, err := range []error{
		s.broker.Publish("a", event), // want `past the outbox.*#publishing-before-the-commit`
		s.hidden.Publish("a", event), // want `past the outbox`
		s.direct.Publish(ctx, 1),     // want `past the outbox`
		s.mixed.Publish("a", event),
		s.given.Publish("a", event),
		s.Exported.Publish("a", event),
		s.out.Publish("a", event),
		s.events.Publish(ctx, 1),
		publish("a", event),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}

// decorated may stand before the outbox.
type decorated struct{ message.Publisher }

func (s *service) other(ctx context.Context, d decorated) error {
	if _, err := Tx(ctx); err != nil {
		return err
	}
	return d.Publish("a")
}

// send is no handler.
func (s *service) send(ctx context.Context) error { return s.broker.Publish("a") }
