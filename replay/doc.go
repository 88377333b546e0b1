// Package replay sends messages again, on purpose: to build a projection anew, to fill a gap,
// or to have handled what lies in a dead-letter queue. A replay keeps the messages' ids, payloads and
// metadata, marks them with inbox.ReplayField, and can be ended and gone on with at any
// point.
//
//	replayer, err := replay.New(db, store, replay.Config{})
//	request := replay.Request{
//		Name:   "orders of May",
//		From:   replay.Archive(out),           // what a relay has sent and keeps
//		Filter: replay.Filter{Topic: "orders"},
//		To:     replay.Outbox(out),            // a relay sends it
//		By:     inbox.Operator{Name: "ada", Reason: "the projection lost a column"},
//	}
//	plan, err := replayer.Plan(ctx, request)   // what would happen
//	status, err := replayer.Run(ctx, request)  // until it is done; call it again to go on
//
// # Where messages come from
//
// [Archive] is what relays have sent and keep, for RelayConfig.Retention. [Journal] is what a
// consumer has handled, where middleware.Inbox has Journal set. [Replayer.Drain] empties a dead-letter
// topic or queue, from any message.Subscriber.
//
// # Where they go
//
// [Outbox] stores them in the outbox, in the transaction that moves the replay on: no message is
// stored twice, whenever the process dies. All consumers of the topic get them. [Queue] stores them
// for one consumer, which needs pubsub.Durable, in the same way. [Publisher] sends them at once; what
// was being sent when the process died is sent again.
//
// # What a consumer does with them
//
// What it has completed is a duplicate, as ever: a projection that is built anew raises its Epoch
// first. What it has not is handled as its OnReplay says. A request that would have a consumer
// with inbox.ReplayRefuse handle or park messages is refused with [ErrSideEffects] unless it names
// that consumer in IntoSideEffects.
package replay
