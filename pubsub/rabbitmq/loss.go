package rabbitmq

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

var errUnreadable = errors.New("amqp091, the client library, cannot read a message, for instance a header of a type that it does not know, " +
	"and ends the whole connection: take the message out of its queue with another client, or use a newer amqp091")

// lossOf returns why a connection was lost.
func lossOf(reason *amqp091.Error) error {
	switch {
	case reason == nil:
		return errors.New("the connection was closed")
	case unreadable(reason):
		return fmt.Errorf("%w: %w", errUnreadable, reason)
	}
	return reason
}

// unreadable reports whether the client library could not read what RabbitMQ sent. Only the text tells it from the loss
// of the network.
func unreadable(reason *amqp091.Error) bool {
	return !reason.Server && strings.Contains(reason.Reason, amqp091.ErrSyntax.Reason)
}

// refused reports whether RabbitMQ or the client library ended the connection because of what it had read.
func refused(reason *amqp091.Error) bool {
	return reason != nil && (reason.Server || unreadable(reason))
}

// pauses are those between attempts to connect, each longer than the one before.
type pauses struct {
	amqp.ReconnectConfig
	pause time.Duration
}

func newPauses(config amqp.ConnectionConfig) *pauses {
	backoff := backoffOf(config.Reconnect)
	return &pauses{backoff, backoff.BackoffInitialInterval}
}

func (p *pauses) next() time.Duration {
	pause := p.pause
	p.pause = min(time.Duration(float64(pause)*p.BackoffMultiplier), p.BackoffMaxInterval)
	return pause
}

// backoffOf returns the pauses between attempts. Watermill's own default would leave a service
// without its broker for up to a minute after the broker is back.
func backoffOf(config *amqp.ReconnectConfig) amqp.ReconnectConfig {
	if config == nil {
		return amqp.ReconnectConfig{
			BackoffInitialInterval: 100 * time.Millisecond, BackoffRandomizationFactor: 0.5,
			BackoffMultiplier: 2, BackoffMaxInterval: 5 * time.Second,
		}
	}
	c := *config
	c.BackoffInitialInterval = max(c.BackoffInitialInterval, time.Millisecond)
	c.BackoffMaxInterval = max(c.BackoffMaxInterval, c.BackoffInitialInterval)
	c.BackoffMultiplier = max(c.BackoffMultiplier, 1)
	return c
}
