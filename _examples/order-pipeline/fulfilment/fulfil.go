package fulfilment

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"order-pipeline/events"

	"github.com/millrace-go/millrace/inbox"
)

// fulfil reserves the stock for an order and issues the invoice, or rejects the order. What
// it returns is stored in the same transaction, by Inbox.Outbox, and sent by the relay.
func fulfil(msg *message.Message) ([]*message.Message, error) {
	event, err := events.Of(msg)
	if err != nil {
		return nil, err
	}
	order, ok := event.(events.OrderPlaced)
	if !ok {
		return nil, fmt.Errorf("%T was not expected here", event)
	}
	tx, err := inbox.Tx(msg.Context())
	if err != nil {
		return nil, err
	}
	result, err := decide(msg.Context(), tx, order)
	return []*message.Message{result}, err
}

func decide(ctx context.Context, tx *sqlx.Tx, order events.OrderPlaced) (*message.Message, error) {
	amount, err := reserve(ctx, tx, order)
	if errors.Is(err, errOutOfStock) {
		// A decision and not a failure: to return the error would be to try again for ever.
		if _, err := tx.ExecContext(ctx, `INSERT INTO rejection VALUES ($1)`, order.Order); err != nil {
			return nil, err
		}
		return events.New(ctx, events.OrderRejected{Order: order.Order, Reason: err.Error()})
	}
	if err != nil {
		return nil, err
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO invoice VALUES ($1, $2)`, order.Order, amount); err != nil {
		return nil, err
	}
	return events.New(ctx, events.InvoiceIssued{Order: order.Order, Amount: amount})
}

var errOutOfStock = errors.New("out of stock")

// reserve takes the goods from the stock and returns what they cost.
func reserve(ctx context.Context, tx *sqlx.Tx, order events.OrderPlaced) (amount int64, err error) {
	err = tx.GetContext(ctx, &amount, `
		UPDATE stock SET available = available - $1, reserved = reserved + $1
		WHERE item = $2 AND available >= $1
		RETURNING price * $1`, order.Quantity, order.Item)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, errOutOfStock
	}
	if err != nil {
		return 0, err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO reservation VALUES ($1, $2)`, order.Order, order.Quantity)
	return amount, err
}
