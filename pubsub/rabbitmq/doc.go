// Package rabbitmq publishes to RabbitMQ and subscribes to it where watermill-amqp/v2 would
// lose messages, stand still or be slow. It takes watermill-amqp's Config, and understands
// its messages and is understood by it.
//
// # Publishing
//
//	broker := rabbitmq.NewQueueConfig("amqp://…", rabbitmq.Queues{Quorum: true})
//	publisher, err := rabbitmq.NewPublisher(broker, rabbitmq.PublisherConfig{})
//	relay, err := outbox.NewRelay(db, publisher, outbox.RelayConfig{})
//
// [Publisher.Publish] returns nil when RabbitMQ has confirmed every message of the call. They
// are sent without waiting for each other, so that 500 in one call take little longer than
// one. A message that no queue takes is an error, and so is one that RabbitMQ refuses, does
// not answer for in time, or that was on its way when the channel was lost; each message of
// a call has its own.
//
// # Subscribing
//
//	subscriber, err := rabbitmq.NewSubscriber(broker, rabbitmq.SubscriberConfig{InFlight: 16})
//	inbox := millrace.Inbox{Store: store, Redelivered: rabbitmq.Redelivered}
//
// One message in flight keeps the order of a queue, several do not: then a message may be
// handled before one that was published earlier, and one that failed comes again after
// those behind it. When a subscription ends it waits for its messages in flight, so that a
// service which is restarted does not see them twice at once.
//
// A quorum queue marks a message that it delivers again by a header that is a number, and a
// dead letter by one that is a table. watermill-amqp's DefaultMarshaler refuses both, and
// the message is delivered for ever without reaching a handler; [Marshaler] turns them into
// metadata.
//
// # Dead letters
//
// [Requeue] sends the letters in a queue of dead letters back to the queues in which they died, with
// all that a message is, and acks each when it is confirmed there.
//
// # Topology
//
// [NewQueueConfig] and [NewPubSubConfig] give each setting with its reason. RabbitMQ keeps
// nothing for a queue that is not there: let consumers declare theirs first, or call
// [Declare] when deploying.
package rabbitmq
