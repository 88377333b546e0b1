package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/millrace-go/millrace/internal/reserved"
)

// DeathsField is the header in which [Requeue] keeps the x-death of a dead letter, a list of tables, as
// JSON text: consumers of watermill-amqp read no header that is not text.
const DeathsField = "millrace_x_death"

// letter is a dead letter that Requeue sends on.
type letter struct {
	*message.Message
	delivery   amqp091.Delivery
	to         string // the queue
	publishing amqp091.Publishing
}

type letterKey struct{}

// message returns the message from which [letterMarshaler] gets the letter.
func (l *letter) message(ctx context.Context) *message.Message {
	msg := message.NewMessage(l.UUID, nil)
	msg.SetContext(context.WithValue(ctx, letterKey{}, l))
	return msg
}

// letterMarshaler passes letters to RabbitMQ as they came from it: a message has room neither for
// headers that are not strings nor for properties.
type letterMarshaler struct{ amqp.Marshaler }

func (letterMarshaler) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	l, is := msg.Context().Value(letterKey{}).(*letter)
	if !is {
		return amqp091.Publishing{}, errors.New("it is not a dead letter")
	}
	return l.publishing, nil
}

// replayed returns what Requeue sends for the letter d.
func (r *requeue) replayed(d amqp091.Delivery, msg *message.Message) (amqp091.Publishing, error) {
	headers := amqp091.Table{}
	maps.Copy(headers, d.Headers)
	maps.DeleteFunc(headers, func(name string, _ any) bool {
		return name == ccHeader || brokers(name) || slices.Contains(reserved.Poisoned, name)
	})
	for _, name := range []string{deathHeader, DeathsField} { // an earlier release kept it as a list
		if died, is := d.Headers[name]; is {
			headers[DeathsField] = text(died)
			break
		}
	}
	attempts, _ := strconv.Atoi(text(headers[reserved.ReplayAttempt])) // 0 if it was never sent back
	headers[reserved.ReplayAttempt] = strconv.Itoa(attempts + 1)
	headers[reserved.Replay] = r.config.Replay
	if r.config.Plain {
		delete(headers, reserved.Replay)
	}
	p := amqp091.Publishing{
		Headers: headers, Body: d.Body,
		ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, DeliveryMode: d.DeliveryMode,
		Priority: d.Priority, CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo, Expiration: d.Expiration,
		MessageId: d.MessageId, Timestamp: d.Timestamp, Type: d.Type, AppId: d.AppId,
	}
	if r.config.Payload == nil {
		return p, nil
	}
	body, err := r.config.Payload(msg)
	if err != nil {
		return p, fmt.Errorf("RequeueConfig.Payload: %w", err)
	}
	p.Body = body
	return p, nil
}

// origin returns the queue in which a letter died. If it passed through other queues after that,
// such as one in which it waited, that is the last one whose consumer rejected it.
func origin(d amqp091.Delivery, msg *message.Message, broker amqp.Config) (queue string, err error) {
	deaths, _ := d.Headers[deathHeader].([]any) // the latest first
	byConsumer := func(entry any) bool {
		death, _ := entry.(amqp091.Table)
		reason, _ := death["reason"].(string)
		return reason == "rejected" || reason == "delivery_limit"
	}
	if n := max(slices.IndexFunc(deaths, byConsumer), 0); n < len(deaths) {
		death, _ := deaths[n].(amqp091.Table)
		queue, _ = death["queue"].(string)
	}
	if topic := msg.Metadata.Get(reserved.PoisonedTopic); queue == "" && topic != "" {
		queue = broker.Queue.GenerateName(topic)
	}
	if queue == "" {
		return "", errors.New("neither x-death nor PoisonQueue says where it came from: set RequeueConfig.To")
	}
	return queue, nil
}
