package rabbitmq

import (
	"errors"

	"github.com/millrace-go/millrace/internal/prefix"
)

// Conditions a caller may branch on, with errors.Is. The error of a message that RabbitMQ would
// refuse each time is outbox.ErrPermanent.
var (
	// ErrNotConnected says that there is no connection to RabbitMQ just now. Publishers and
	// subscribers reconnect by themselves.
	ErrNotConnected = errors.New("rabbitmq: not connected to RabbitMQ")

	// ErrUnconfirmed says that RabbitMQ did not answer in time: the message may be in its
	// queue or not.
	ErrUnconfirmed = errors.New("rabbitmq: not confirmed in time")

	// ErrClosed says that the publisher or the subscriber was closed.
	ErrClosed = errors.New("rabbitmq: the publisher or subscriber is closed")
)

// errorf is [prefix.Errorf] for this package.
func errorf(format string, args ...any) error { return prefix.Errorf("rabbitmq", format, args...) }

// invalid returns nil if there are no problems with a config.
func invalid(config string, problems error) error {
	if problems == nil {
		return nil
	}
	return errorf("invalid %s: %w", config, problems)
}
