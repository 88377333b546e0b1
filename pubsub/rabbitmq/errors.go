package rabbitmq

import "errors"

// Conditions a caller may branch on, with errors.Is. A message that RabbitMQ will not take
// however often it is published carries outbox.ErrPermanent.
var (
	// ErrNotConnected says that there is no connection to RabbitMQ just now. A publisher and
	// a subscriber connect again by themselves.
	ErrNotConnected = errors.New("not connected to RabbitMQ")

	// ErrUnconfirmed says that RabbitMQ did not answer in time: the message may be in its
	// queue or not.
	ErrUnconfirmed = errors.New("not confirmed in time")

	// ErrClosed says that the publisher or the subscriber was closed.
	ErrClosed = errors.New("it is closed")
)
