// Package outbox stores messages in the database transaction that makes them true, and
// relays them to a broker once that transaction is committed.
//
// A service that commits and then publishes loses the message if it dies in between; one
// that publishes and then commits announces work that may be rolled back. Here the message
// is a row of the same transaction: it exists exactly if the work does, and a relay sends it
// until the broker has confirmed it.
//
// # What a service does
//
//	out, err := outbox.NewPublisher(db, outbox.Config{})             // db is its *sqlx.DB
//	err = out.Migrate(ctx)                                            // or apply out.Schema()
//	relay, err := outbox.NewRelay(db, broker, outbox.RelayConfig{})   // broker is a message.Publisher
//	g.Go(func() error { return relay.Run(ctx) })
//
// and, where it does something that other services must learn of,
//
//	err = outbox.InTx(ctx, db, func(ctx context.Context, tx *sqlx.Tx) error {
//		_, err := tx.ExecContext(ctx, `INSERT INTO orders …`)
//		if err != nil {
//			return err
//		}
//		return eventBus.Publish(ctx, OrderPlaced{…}) // a cqrs.EventBus on out
//	})
//
// # Publishing
//
// [Publisher] is a Watermill publisher. It finds the transaction in each message's context:
//
//   - in a handler behind middleware.Inbox, the message's context carries it. With
//     middleware.Inbox{Outbox: out}, what such a handler returns is stored in it too;
//   - [InTx] begins one, or joins that of its context, and commits it;
//   - [WithTx] adds one that the caller began and ends.
//
// The innermost counts. Watermill's CQRS buses put the context into their messages; for a
// message made by hand call msg.SetContext(ctx). All messages of a call are stored or none,
// whatever the caller does with the error. Publish returns [ErrNoTx] for a message without a
// transaction, unless Config.Standalone has it commit such messages by themselves, and
// [ErrTxEnded] for one whose transaction has ended.
//
// On MySQL and MariaDB a schema statement or a deadlock ends the transaction without the
// driver knowing, and the server commits each later statement at once. Publish returns
// [ErrTxEnded] there too: on MariaDB its INSERT checks; on MySQL it sets a savepoint first,
// which takes two more round trips per call.
//
// As a router's publisher decorator, [Publisher.Decorate] stores what handlers return in a
// transaction of its own: a router publishes after every middleware has returned.
//
// # Relaying
//
// [Relay] sends what is committed to any Watermill publisher, which must return only when the
// broker has the messages. The relay deletes a message after that, so a crash in between has
// it sent once more: at least once, with the UUID, metadata and payload that it was published
// with. A consumer behind middleware.Inbox recognises the second one as a duplicate.
//
// A relay holds no transaction open while it talks to the broker. The commits of [InTx], of
// the inbox and of the publisher itself wake it; [Publisher.Wake] does after any other commit.
// A relay also looks at the table by itself, so a lost wake-up costs no message.
//
// # What is in order
//
// Without Config.OrderKey there is no order, and no message waits for another. With it,
// messages of one key are first sent in the order in which one transaction published them.
// Two transactions are sent in the order of their commits if they exclude each other before
// they publish, by locking the row they are about; otherwise their order is undefined. A
// relay sends the next message of a key when the broker has confirmed the one before it.
//
// # When sending fails
//
// If other messages get through, the relay retries the one that failed after growing pauses,
// and parks it after RelayConfig.MaxAttempts; only messages of its key wait for it. If none
// gets through, the broker is out: the relay spends no attempts and probes with one message
// at a time until the broker is back. An error marked by [Permanent] always counts against
// the message.
//
// [Publisher.Parked] lists parked messages; [Publisher.Retry] and [Publisher.Discard] decide
// about them. [Publisher.Backlog] says how much is unsent and how old the oldest is,
// [Publisher.Shards] which relay sends what.
//
// # Several relays
//
// Run one in each process of the service. They divide the keys between them, in 64 shards
// that each have one relay at a time. A relay that stops gives its shards up; if one dies,
// others take its shards over when its lease ends. A relay that was frozen for longer than
// its lease sends nothing more with it. [Relay.RelayBatch] is for those who prefer cron.
//
// # Shutdown
//
// Stop what publishes: routers and HTTP servers. Then end the context of [Relay.Run] and wait
// for it to return; it waits for the messages that are on their way. Then close the inbox's
// Store, the broker's publisher, and db. What was not sent is sent by another relay, or after the
// next start. A router closes the publishers of its handlers: give the relay one of its own.
package outbox

// The words of the relay, for who reads its code:
//
//	letter     a message that the relay has read
//	in hand    read, and its result not yet written to the table
//	look       one query of the table; a sweep looks at the whole table, a walk at all keys
//	floor      the id from which the relay looks for new messages
//	tail       the end of the table, which the relay reads first while a few keys have a backlog
//	lane       one of the publisher's calls that run side by side, and the queue before it
//	run        the letters that a lane publishes at once; a wave is what one call may hold of it
//	fate       the result of publishing a letter
//	set aside  waiting in the table for a retry or, parked, for an operator
//	head       a letter set aside for which the later messages of its key wait: it blocks the key
//	hold back  to mark a message in the table so that it waits for an earlier one of its key
//	ledger     results that the relay has yet to write to the table
//	suspect    a letter that failed, so that it may be the cause and not the broker
//	trouble    a topic that fails while others do not
