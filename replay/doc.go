// Package replay sends messages again on purpose: to rebuild a projection, to fill a gap, or to
// empty a dead-letter queue. A replay keeps the messages' UUIDs, payloads and metadata, marks them
// with inbox.ReplayField, and can be stopped and continued at any point.
//
//	replayer, err := replay.New(db, store, replay.Config{})
//	request := replay.Request{
//		Name:   "orders of May",
//		From:   replay.Archive(out),           // what a relay has sent and keeps
//		Filter: replay.Filter{Topic: "orders"},
//		To:     replay.Outbox(out),            // a relay sends it
//		By:     admin.Operator{Name: "ada", Reason: "the projection lost a column"},
//	}
//	plan, err := replayer.Plan(ctx, request)   // what would happen
//	status, err := replayer.Run(ctx, request)  // until it is done; call it again to go on
//
// # Where messages come from
//
// [Archive] has the messages that relays have sent and keep, for RelayConfig.Retention. [Journal]
// has those that a consumer has handled, if its middleware.Inbox sets Journal. [Replayer.Drain]
// empties a dead-letter topic or queue, through any message.Subscriber.
//
// # Where they go
//
// [Outbox] stores them in the outbox, in the transaction that advances the replay: it stores no
// message twice, whenever the process dies. All consumers of the topic get them. [Queue] does the
// same for one consumer, which needs pubsub.Durable. [Publisher] sends them at once, and
// may send a batch twice: if the process dies or the publisher fails in the middle of the batch, the
// next call sends it again, and two calls that begin it at the same moment both send it.
//
// # What a consumer does with them
//
// A message that the consumer has completed is a duplicate, as always: to rebuild a projection,
// raise its Epoch first. The consumer's OnReplay decides about the others. If a consumer with
// inbox.ReplayRefuse would get messages, Run refuses the request with [ErrSideEffects], unless it
// names that consumer in IntoSideEffects. For a topic, Run looks at the first [LookAt] messages,
// and only at consumers whose key is made of the message alone; the others park what they get.
package replay
