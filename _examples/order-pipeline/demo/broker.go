package demo

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"order-pipeline/events"

	"github.com/millrace-go/millrace/pubsub/rabbitmq"
)

// routes are the queues of the pipeline: who hears what.
var routes = []struct{ topic, service string }{
	{events.Orders, "fulfilment"},
	{events.Fulfilment, "orders"},
}

// broker makes RabbitMQ a worse one than it is.
type broker struct {
	uri, prefix string
	copies      atomic.Int64
}

func (b *broker) queue(topic, service string) string {
	return events.Broker(b.uri, b.prefix, service).Queue.GenerateName(topic)
}

// double hears every message, as a group of its own, and puts half of them a second time
// into the queue of the service that they are for, until ctx ends.
func (b *broker) double(ctx context.Context) (err error) {
	subscriber, err := rabbitmq.NewSubscriber(events.Broker(b.uri, b.prefix, "echo"), rabbitmq.SubscriberConfig{})
	if err != nil {
		return err
	}
	publisher, err := rabbitmq.NewPublisher(
		rabbitmq.NewQueueConfig(b.uri, rabbitmq.Queues{}), rabbitmq.PublisherConfig{})
	if err != nil {
		return errors.Join(err, subscriber.Close())
	}
	router, err := message.NewRouter(message.RouterConfig{}, nil)
	if err != nil {
		return err
	}
	for _, route := range routes {
		to := b.queue(route.topic, route.service)
		router.AddHandler("echo-"+route.topic, route.topic, subscriber, to, publisher,
			func(msg *message.Message) ([]*message.Message, error) {
				if rand.IntN(2) == 0 {
					return nil, nil
				}
				b.copies.Add(1)
				return []*message.Message{msg}, nil
			})
	}
	return router.Run(ctx)
}

// waiting counts what waits in the queues, those of dead letters apart.
func (b *broker) waiting() (messages, deadLetters int, err error) {
	err = b.channel(func(ch *amqp091.Channel) error {
		for _, route := range routes {
			name := b.queue(route.topic, route.service)
			queue, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
			if err != nil {
				return err
			}
			dead, err := ch.QueueDeclarePassive(name+rabbitmq.DeadLetterSuffix, true, false, false, false, nil)
			if err != nil {
				return err
			}
			messages += queue.Messages
			deadLetters += dead.Messages
		}
		return nil
	})
	return messages, deadLetters, err
}

// clean deletes the exchanges and queues of the demo.
func (b *broker) clean() error {
	return b.channel(func(ch *amqp091.Channel) (err error) {
		for _, route := range routes {
			for _, service := range []string{route.service, "echo"} {
				queue := b.queue(route.topic, service)
				for _, name := range []string{queue, queue + rabbitmq.DeadLetterSuffix} {
					_, e := ch.QueueDelete(name, false, false, false)
					err = errors.Join(err, e)
				}
				err = errors.Join(err, ch.ExchangeDelete(queue+rabbitmq.DeadLetterSuffix, false, false))
			}
			err = errors.Join(err, ch.ExchangeDelete(b.prefix+route.topic, false, false))
		}
		return err
	})
}

func (b *broker) channel(work func(*amqp091.Channel) error) error {
	conn, err := amqp091.Dial(b.uri)
	if err != nil {
		return err
	}
	ch, err := conn.Channel()
	if err == nil {
		err = work(ch)
	}
	return errors.Join(err, conn.Close())
}
