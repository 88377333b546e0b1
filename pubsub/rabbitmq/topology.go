package rabbitmq

import (
	"errors"
	"fmt"
	"maps"
	"math"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// DeadLetterSuffix ends the names of the exchange and the queue for dead letters: they are the name
// of the messages' queue and this suffix.
const DeadLetterSuffix = ".dead"

const deliveryLimit = "x-delivery-limit"

// Limits on the deliveries of a message by a quorum queue. Without one, RabbitMQ 3 queues a nacked
// message behind all others, and RabbitMQ 4 drops it after 20 deliveries.
const (
	defaultDeliveryLimit = 20
	noDeliveryLimit      = math.MaxInt32
)

// Queues says what [NewQueueConfig] and [NewPubSubConfig] declare. A queue that exists keeps
// its settings: RabbitMQ refuses to declare it with others.
type Queues struct {
	// Quorum keeps each queue on several nodes, so that confirmed messages survive the loss of
	// one, and counts deliveries. The default is a classic queue, on one node.
	//
	// A quorum queue is declared with a limit on deliveries. Without DeadLetters it is so high
	// that no message reaches it: with no limit, RabbitMQ 3 queues a nacked message behind all
	// others, and RabbitMQ 4 drops it after 20 deliveries.
	Quorum bool

	// DeadLetters moves messages that a queue gives up to a queue of their own; see
	// [DeadLetterSuffix]. A quorum queue gives a message up after DeliveryLimit failed
	// deliveries; before RabbitMQ 4.3 every delivery without an ack counts as failed. A classic
	// queue does not count, and gives a message up at its first nack.
	//
	// Without DeadLetters a nacked message is redelivered until it is acked. An inbox that parks
	// messages that fail for good needs no dead letters; they are for those it cannot store.
	//
	// Read dead letters as a topic of [NewQueueConfig] with the same Quorum.
	DeadLetters bool

	// DeliveryLimit is for a quorum queue with DeadLetters. Defaults to 20, which an inbox without
	// pubsub.Durable uses up when its database is away for a minute: set it to thousands there.
	DeliveryLimit int
}

// NewQueueConfig is for work queues: a topic is a queue, and each message goes to one of its
// subscribers. Publisher and subscriber take the same Config.
//
// Its settings, besides those of q:
//   - queues are durable and messages persistent: they survive a restart of RabbitMQ;
//   - a message that no queue takes is an error: it would be lost;
//   - one message is prefetched: others that a consumer held would be out of order after a nack,
//     and withheld from other consumers. A [Subscriber] with more in flight raises it;
//   - a nacked message is requeued at its old place, unless q makes it a dead letter;
//   - [Marshaler] marshals messages.
//
// Publish to a queue that exists: declare it with [Subscriber.SubscribeInitialize] or
// [Declare].
func NewQueueConfig(uri string, q Queues) amqp.Config {
	return q.apply(amqp.NewDurableQueueConfig(uri))
}

// NewPubSubConfig is for events: a topic is a fanout exchange, and each group of consumers has a
// queue bound to it, named topic_group, which gets every message. A publisher needs no group.
//
// Its settings are those of [NewQueueConfig]. A message that is published before any group has its
// queue is an error: declare the queues first, with [Subscriber.SubscribeInitialize] or [Declare],
// or allow it with [PublisherConfig].AllowUnroutable.
func NewPubSubConfig(uri, group string, q Queues) amqp.Config {
	var names amqp.QueueNameGenerator
	if group != "" {
		names = amqp.GenerateQueueNameTopicNameWithSuffix(group)
	}
	return q.apply(amqp.NewDurablePubSubConfig(uri, names))
}

func (q Queues) apply(c amqp.Config) amqp.Config {
	c.Marshaler = Marshaler{}
	c.Publish.Mandatory = true
	c.Publish.ConfirmDelivery = true
	c.Publish.ChannelPoolSize = defaultChannels
	c.Queue.Arguments = q.arguments()
	if !q.DeadLetters {
		return c
	}
	c.TopologyBuilder = deadLetters{arguments: q.arguments()}
	if !q.Quorum {
		c.Consume.NoRequeueOnNack = true
		return c
	}
	if q.DeliveryLimit == 0 {
		q.DeliveryLimit = defaultDeliveryLimit
	}
	c.Queue.Arguments[deliveryLimit] = q.DeliveryLimit
	// By default RabbitMQ dead-letters at most once. For at least once, it must be able to refuse
	// new messages while it cannot store the dead letters.
	c.Queue.Arguments["x-dead-letter-strategy"] = "at-least-once"
	c.Queue.Arguments[amqp091.QueueOverflowArg] = amqp091.QueueOverflowRejectPublish
	return c
}

// arguments are those of a queue without dead letters.
func (q Queues) arguments() amqp091.Table {
	if !q.Quorum {
		return amqp091.Table{}
	}
	return amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum, deliveryLimit: noDeliveryLimit}
}

// limited reports whether a queue with these arguments may give a message up after some deliveries. RabbitMQ 4 has a
// limit for quorum queues that name none.
func limited(arguments amqp091.Table) bool {
	limit, set := integer(arguments[deliveryLimit])
	return arguments[amqp091.QueueTypeArg] == amqp091.QueueTypeQuorum && (!set || limit != noDeliveryLimit)
}

// deadLetters declares, for each queue, the exchange and the queue of its dead letters.
type deadLetters struct {
	amqp.DefaultTopologyBuilder
	arguments amqp091.Table // of the queue of dead letters
}

func (b deadLetters) BuildTopology(
	ch *amqp091.Channel, queue, exchange string, c amqp.Config, logger watermill.LoggerAdapter,
) error {
	dead := queue + DeadLetterSuffix
	if err := fits("queue of dead letters", dead); err != nil {
		return err
	}
	arguments := amqp091.Table{"x-dead-letter-exchange": dead}
	maps.Copy(arguments, c.Queue.Arguments)
	c.Queue.Arguments = arguments
	if err := ch.ExchangeDeclare(dead, amqp091.ExchangeFanout, true, false, false, false, nil); err != nil {
		return fmt.Errorf("declare the exchange of dead letters: %w", err)
	}
	if _, err := ch.QueueDeclare(dead, true, false, false, false, b.arguments); err != nil {
		return fmt.Errorf("declare the queue of dead letters: %w", err)
	}
	if err := ch.QueueBind(dead, "", dead, false, nil); err != nil {
		return fmt.Errorf("bind the queue of dead letters: %w", err)
	}
	return b.DefaultTopologyBuilder.BuildTopology(ch, queue, exchange, c, logger)
}

// Declare declares the exchanges and queues of topics as a subscriber with this Config would, and
// binds them. It opens a connection only for that: call it in a deployment, before the first
// message is published.
func Declare(broker amqp.Config, topics ...string) error {
	broker = withDefaults(broker)
	if err := subscribable(broker); err != nil {
		return invalid("Config", err)
	}
	s, err := dial(broker.Connection)
	if err == nil {
		err = s.declare(broker, topics)
	}
	if err != nil {
		return errorf("declare: %w", err)
	}
	return nil
}

// declare ends s, also if a function of broker panics.
func (s *session) declare(broker amqp.Config, topics []string) (err error) {
	defer func() { err = errors.Join(err, s.end()) }()
	ch, err := s.Channel()
	for _, topic := range topics {
		if err == nil {
			err = declareQueue(ch, broker, topic, broker.Queue.GenerateName(topic), watermill.NopLogger{})
		}
	}
	return err
}

// subscribable returns every problem of the settings with which a subscriber declares and consumes.
func subscribable(broker amqp.Config) error {
	return errors.Join(broker.ValidateSubscriber(), waited("Exchange", broker.Exchange.NoWait),
		waited("Queue", broker.Queue.NoWait), waited("QueueBind", broker.QueueBind.NoWait), waited("Consume", broker.Consume.NoWait))
}

// noStream refuses a queue that is a stream.
func noStream(arguments amqp091.Table) error {
	if arguments[amqp091.QueueTypeArg] != amqp091.QueueTypeStream {
		return nil
	}
	return errors.New("its x-queue-type is stream: a stream redelivers nothing that was nacked, and remembers no subscriber's place: " +
		"set quorum or classic, or read the stream with a client for streams")
}

func waited(what string, not bool) error {
	if !not {
		return nil
	}
	return fmt.Errorf("%s.NoWait hides a refusal by RabbitMQ, which then closes the channel: leave it out", what)
}

func declareQueue(ch *amqp091.Channel, broker amqp.Config, topic, queue string, logger watermill.LoggerAdapter) error {
	exchange := broker.Exchange.GenerateName(topic)
	err := errors.Join(queueFits(queue), fits("exchange", exchange), noStream(broker.Queue.Arguments))
	if bind := broker.QueueBind.GenerateRoutingKey; exchange != "" && bind != nil {
		err = errors.Join(err, fits("routing key", bind(queue)))
	}
	if err == nil {
		err = broker.TopologyBuilder.BuildTopology(ch, queue, exchange, broker, logger)
	}
	if err != nil {
		return fmt.Errorf("topic %q, queue %q: %w", topic, queue, err)
	}
	return nil
}
