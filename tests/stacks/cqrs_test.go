package stacks_test

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
)

// addGroup adds a group of two handlers of one event. They share the transaction, so the message has both effects or
// none.
func addGroup(router *message.Router, sub message.Subscriber) error {
	groups, err := cqrs.NewEventGroupProcessorWithConfig(router, cqrs.EventGroupProcessorConfig{
		GenerateSubscribeTopic: func(p cqrs.EventGroupProcessorGenerateSubscribeTopicParams) (string, error) {
			return p.EventGroupName, nil
		},
		SubscriberConstructor: func(cqrs.EventGroupProcessorSubscriberConstructorParams) (message.Subscriber, error) { return sub, nil },
		Marshaler:             cqrs.JSONMarshaler{GenerateName: cqrs.StructName},
	})
	if err != nil {
		return err
	}
	return groups.AddHandlersGroup("orders", // the name of the consumer
		cqrs.NewGroupEventHandler(insertOrder),
		cqrs.NewGroupEventHandler(addAmount),
	)
}

func insertOrder(ctx context.Context, o *order) error {
	tx, err := inbox.Tx(ctx)
	if err != nil {
		return err
	}
	_, err = tx.NamedExecContext(ctx, `INSERT INTO orders (id, amount) VALUES (:id, :amount)`, o)
	return err
}

func addAmount(ctx context.Context, o *order) error {
	tx, err := inbox.Tx(ctx)
	if err != nil {
		return err
	}
	_, err = tx.NamedExecContext(ctx, `UPDATE accounts SET balance = balance + :amount WHERE id = 'shop'`, o)
	return err
}
