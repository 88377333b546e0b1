// Package watermillsql publishes and subscribes through the tables of watermill-sql/v3 with
// settings that are safe beside an inbox, on PostgreSQL 13 and later, MySQL 8 and MariaDB:
//
//	publisher, err := watermillsql.NewPublisher(db, watermillsql.Config{})
//	subscriber, err := watermillsql.NewSubscriber(db, watermillsql.SubscriberConfig{ConsumerGroup: "billing"})
//	err = subscriber.Initialize(ctx, "orders") // or apply watermillsql.Schema("postgres", "orders")
//
// The tables are watermill-sql's, so that its own publishers and subscribers work on them
// beside these. In tables made here the payload is any bytes, not only JSON, and UUIDs have
// up to 255 characters, not 36. Tables that watermill-sql made can be used as they are; an
// error about what they do not take names the statement that changes them.
//
// # What is refused
//
// Topics whose tables would be one table: PostgreSQL cuts the names of tables off after 63
// bytes without a word, so that two long topics share their messages. The longest topic has
// 45 characters, or 46 on MySQL. An empty consumer group, with which services steal each
// other's messages. A deadline for acks that is not above the time a handler has.
//
// A publisher on a transaction: what is to be published with a transaction belongs into an
// outbox, whose relay can have this Publisher for its target.
//
// # Behind an inbox
//
// What to know when middleware.Inbox runs on a Subscriber:
//
//   - A message that was not acked within AckDeadline is delivered again while its handler
//     runs. The inbox's Timeout must end the handler before; tell it by InboxTimeout.
//   - Messages are acked in the database by the batch. One that was handled comes again when
//     the process ends before its batch does; the inbox finds it settled. BatchSize is 1 by
//     default, which leaves only the copies that no setting avoids.
//   - Within a consumer group one subscriber works, in the order of the messages, and handles
//     one at a time. More processes are there to take over, not to be faster. A message that
//     fails holds up the ones behind it, and is delivered again each ResendInterval.
//   - Each subscription holds a connection while a message is handled, and the inbox takes
//     another one: a pool needs two for each subscription, or the subscriber one of its own.
//   - wmsql.TxFromContext is not the inbox's transaction. A nack does not roll it back: what
//     a failed run wrote is committed with the run that succeeds. Use inbox.Tx.
//
// # PostgreSQL: open transactions hold back messages
//
// watermill-sql delivers a message once every transaction that was open when it was
// published has ended, in all databases of the server, so that none is skipped that
// commits late. Transactions that have only read do not count. All that have written do:
// reports that fill a temporary table, migrations, a psql someone left open, and
//
//   - the transaction of an inbox, from the claim to the commit, wherever its message came
//     from: a handler that takes 20 seconds delays each topic of the server by up to as much;
//   - the transaction of a Subscriber, while a message of its batch is handled.
//
// Where handlers are slow, let an outbox.Relay publish to a broker instead: relays do not
// wait for the transactions of others.
//
// # MySQL and MariaDB: batches lock the end of the table
//
// A Subscriber whose batch reaches the end of the table locks it until the batch is
// handled, and Publish to that topic waits; if a handler's own messages go there, until
// AckDeadline, and again each time. With a batch of one it does not.
//
// # MySQL and MariaDB: publishers take turns
//
// An offset is given to a message before its row is in the table. A subscriber that comes by
// in between, and finds a later row of another publisher, acks that one's offset: what comes
// in below is never delivered. So the calls of Publish to one topic follow each other, in all
// processes: each updates a row of the table of offsets first, that of the group
// millrace-publishers, which counts as having acked everything. watermill-sql's own publisher
// does not, and beside it messages can be lost where two publish at the same time.
//
// # What is not done
//
// watermill-sql deletes nothing: the tables grow. What all groups have acked can be deleted,
// on PostgreSQL by
//
//	DELETE FROM "watermill_orders" WHERE (transaction_id, "offset") <= (
//		SELECT last_processed_transaction_id, offset_acked FROM "watermill_offsets_orders"
//		ORDER BY 1, 2 LIMIT 1)
//
// and on MySQL by
//
//	DELETE FROM `watermill_orders` WHERE `offset` <= (
//		SELECT MIN(COALESCE(offset_acked, 0)) FROM `watermill_offsets_orders`)
//
// A group that no longer exists keeps everything; delete its row. A group that is new
// begins with what is still there.
package watermillsql
