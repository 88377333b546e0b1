// Package outbox stores messages in the database transaction that makes them true, and
// relays them to a broker once it is committed.
//
// A service that commits and then publishes loses the message if it dies in between; one
// that publishes and then commits tells of work that may be rolled back. Here the message is
// a row of the same transaction: it exists exactly if the work does, and it is sent until
// the broker has confirmed it.
//
// # What a service does
//
//	out, err := outbox.NewPublisher(db, outbox.Config{})             // db is its *sqlx.DB
//	err = out.Migrate(ctx)                                            // or apply out.Schema()
//	relay, err := outbox.NewRelay(db, broker, outbox.RelayConfig{})   // broker is a message.Publisher
//	g.Go(func() error { return relay.Run(ctx) })
//
// and, where it does something that others must know of,
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
//   - in a handler behind middleware.Inbox, the message's context carries it. What such a
//     handler returns is stored in it too, with middleware.Inbox{Outbox: out};
//   - [InTx] begins one, or joins that of its context, and commits it;
//   - [WithTx] adds one that the caller began and ends.
//
// The innermost counts. Watermill's CQRS buses put the context into their messages; for one
// made by hand call msg.SetContext(ctx). All messages of a call are stored or none, whatever
// the caller makes of the error. Without a transaction the error is [ErrNoTx], unless
// Config.Standalone has such messages committed by themselves, and with one that is over it
// is [ErrTxEnded]. A schema statement or a deadlock ends the transaction on MySQL and MariaDB
// without the driver knowing, and what follows is committed at once: what is published then is
// refused with [ErrTxEnded] too. On MariaDB the INSERT asks; on MySQL a savepoint does, which
// is two round trips for each call.
//
// As a router's publisher decorator, [Publisher.Decorate] stores what handlers return in a
// transaction of its own: a router publishes when every middleware has returned.
//
// # Relaying
//
// [Relay] sends what is committed to any Watermill publisher, which must return only when the
// broker has the messages. It deletes a message after that, so a crash in between sends it
// once more: at least once, with the UUID, metadata and payload that it was published with.
// A consumer behind middleware.Inbox takes the second one for the duplicate that it is.
//
// No transaction is open while a relay talks to the broker. It is woken after the commits
// of [InTx], of the inbox and of the publisher itself; after those of others by
// [Publisher.Wake]; and it looks by itself, so a wake-up that is lost costs no message.
//
// # What is in order
//
// Without Config.OrderKey, nothing is, and no message waits for another. Messages of one
// key are first sent in the order in which they were published in a transaction, and
// transactions in the order of their commits if they exclude each other before they
// publish, by locking the row they are about. If they do not, nothing says which came first.
// The next message of a key goes out when the one before it is confirmed.
//
// # When sending fails
//
// If other messages get through, the one that failed is tried again after growing pauses,
// and parked after RelayConfig.MaxAttempts; its key waits for it, and nothing else does. If
// none gets through, the broker is out: no attempts are spent, and one message at a time
// finds out whether it is back. An error marked by [Permanent] is always about the message.
//
// [Publisher.Parked] lists what is parked; [Publisher.Retry] and [Publisher.Discard] decide
// about it. [Publisher.Backlog] says how much is to be sent and how old the oldest is,
// [Publisher.Shards] which relay sends what.
//
// # Several relays
//
// Run one in each process of the service. They divide the keys between them, in 64 shards of
// which each has one relay at a time. A relay that stops gives its shards up; those of one
// that died are taken over when its lease has ended, and one that was frozen for so long
// sends nothing more when it goes on.
// [Relay.RelayBatch] is for those who would rather use cron.
//
// # Shutdown
//
// Stop what publishes: routers and HTTP servers. Then end the context of [Relay.Run] and wait
// for it to return; it finishes what is on its way. Then close the broker's publisher, and db.
// What was not sent is sent by another relay, or by this one after the next start.
package outbox
