// Package rabbitmq publishes to RabbitMQ and subscribes to it where watermill-amqp/v2 would
// lose messages, stand still or be slow. It takes watermill-amqp's Config, and each of the two
// reads the other's messages.
//
// # Publishing
//
//	broker := rabbitmq.NewQueueConfig("amqp://…", rabbitmq.Queues{Quorum: true})
//	publisher, err := rabbitmq.NewPublisher(broker, rabbitmq.PublisherConfig{})
//	relay, err := outbox.NewRelay(db, publisher, outbox.RelayConfig{})
//
// [Publisher.Publish] returns nil when RabbitMQ has confirmed every message of the call. It
// sends them without waiting in between, so that 500 in one call take little longer than one.
// It returns an error for each message that no queue takes, that RabbitMQ refuses or does not
// confirm in time, or that was on its way when the channel was lost.
//
// # Subscribing
//
//	subscriber, err := rabbitmq.NewSubscriber(broker, rabbitmq.SubscriberConfig{InFlight: 16})
//
// One message in flight keeps the order of a queue, unless a node of a cluster is lost: then only
// a queue with a single active consumer (x-single-active-consumer) keeps it. Several in flight do
// not: a message may be handled before one that was published earlier, and one that failed is
// redelivered after those behind it. A subscription that ends waits for its messages in flight, so that a restarted
// service does not get them while the old process still handles them.
//
// A quorum queue marks a redelivered message by a header that is a number, and a dead letter by
// one that is a table. watermill-amqp's DefaultMarshaler refuses both, so that RabbitMQ delivers
// the message for ever and no handler gets it; [Marshaler] turns such headers into metadata.
//
// # Dead letters
//
// [Requeue] sends the dead letters of a queue back to the queues in which they died, with their
// headers and properties, and acks each when RabbitMQ has confirmed it there.
//
// # Topology
//
// [NewQueueConfig] and [NewPubSubConfig] explain each of their settings. RabbitMQ keeps nothing
// for a queue that does not exist: let consumers declare theirs first, or call [Declare] when
// you deploy.
package rabbitmq
