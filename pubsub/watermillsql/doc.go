// Package watermillsql publishes and subscribes through the tables of watermill-sql/v3 with
// settings that are safe beside an inbox, on PostgreSQL 13 and later, MySQL 8 and MariaDB:
//
//	publisher, err := watermillsql.NewPublisher(db, watermillsql.Config{})
//	subscriber, err := watermillsql.NewSubscriber(db, watermillsql.SubscriberConfig{ConsumerGroup: "billing"})
//	err = subscriber.Initialize(ctx, "orders") // or apply watermillsql.Schema("postgres", "orders")
//
// The tables are watermill-sql's: its own publishers and subscribers work on them beside these.
// Tables made here take any bytes as payload, not only JSON, and UUIDs of up to 255 characters,
// not 36. Tables that watermill-sql made work too; an error about a message that they cannot
// take names the statement that changes them.
//
// Metadata that another program stored by SQL need not be an object of strings: numbers, lists and
// other values are delivered as their JSON text, null as empty text, and metadata that is no object
// in the field [MetadataKey].
//
// # What is refused
//
//   - Topics that would share a table: PostgreSQL silently truncates table names to 63 bytes, so
//     that two long topics would share their messages. A topic may have 45 characters, or 46 on
//     MySQL. A MySQL with lower_case_table_names makes names lower-case, and a topic there may
//     have no upper-case letters.
//   - An empty consumer group, with which services steal each other's messages.
//   - On MySQL, in tables that watermill-sql made, a group whose name differs from another's in case
//     or accents only: each would miss what the other acks. The error names the statement that helps.
//   - On MySQL, to publish into a payload column of type BINARY, which lengthens what is shorter.
//   - A deadline for acks that is not longer than the time a handler has.
//   - A publisher on a transaction: use an outbox to publish with a transaction. Its relay can
//     publish through this Publisher.
//
// # Behind an inbox
//
// What to know when middleware.Inbox runs on a Subscriber:
//
//   - A message that is not acked within AckDeadline is redelivered while its handler still
//     runs. The inbox's Timeout must end the handler before; set InboxTimeout to it.
//   - Messages are acked in the database by the batch. If the process ends before its batch is
//     done, the messages of the batch that were handled are redelivered, and the inbox takes them
//     for duplicates. BatchSize is 1 by default, which leaves only the copies that no setting
//     avoids.
//   - Within a consumer group one subscriber works, in the order of the messages, one at a time.
//     More processes take over when it fails, but do not make it faster. A message that fails
//     holds up those behind it, and is redelivered each ResendInterval.
//   - Each subscription holds a connection while a message is handled, and the inbox takes
//     another one: the pool needs two for each subscription, or give the subscriber its own pool.
//   - wmsql.TxFromContext is not the inbox's transaction. A nack does not roll it back: what a
//     failed run wrote is committed with the run that succeeds. Use inbox.Tx.
//
// # PostgreSQL: open transactions hold back messages
//
// watermill-sql delivers a message only when every transaction that was open when it was
// published has ended, in all databases of the server, so that it skips none that commits late.
// Transactions that have only read do not count. All that have written do: reports that fill a
// temporary table, migrations, a psql someone left open, and
//
//   - the transaction of an inbox, from the claim to the commit, wherever its message came
//     from: a handler that takes 20 seconds delays each topic of the server by up to as much;
//   - the transaction of a Subscriber, while a message of its batch is handled.
//
// If handlers are slow, let an outbox.Relay publish to a broker instead: relays do not wait for
// the transactions of others.
//
// # PostgreSQL: tables that move to another server
//
// watermill-sql orders messages by the ids of their transactions, which every server counts for itself. A server that gets the
// tables by pg_dump or by logical replication, as in some blue/green deployments, may count from less. Then it delivers nothing,
// neither what was unread nor what is published there, until it has counted as far, and nobody sees an error: Publish succeeds,
// and so does a relay. A replica that becomes the primary, a copy of the files and pg_upgrade keep the ids.
//
// After such a move, before services start on the new server, run for each topic
//
//	WITH moved AS (UPDATE "watermill_orders" SET transaction_id = '0')
//	UPDATE "watermill_offsets_orders" SET last_processed_transaction_id = '0', offset_acked = COALESCE(
//		(SELECT MIN("offset") - 1 FROM "watermill_orders"
//			WHERE (transaction_id, "offset") > (last_processed_transaction_id, offset_acked)
//				OR "offset" > offset_acked AND transaction_id < pg_snapshot_xmax(pg_current_snapshot())),
//		(SELECT MAX("offset") FROM "watermill_orders"), 0)
//
// Groups then get everything that they have not acked, and what was published on the new server; some of the messages that they
// have acked can come again. To run it twice does no harm. Logical replication leaves sequences behind: set the one of "offset" first.
//
// # MySQL and MariaDB: batches lock the end of the table
//
// A Subscriber whose batch reaches the end of the table locks it until the batch is handled, and
// Publish to that topic waits. If one of its handlers publishes there, it waits until AckDeadline,
// and does so again each time. A batch of one takes no such lock.
//
// # MySQL and MariaDB: publishers take turns
//
// MySQL gives a message its offset before the row is in the table. If a subscriber reads in
// between, finds a later row of another publisher and acks that one's offset, it never delivers
// the earlier message. So calls of Publish to one topic take turns, in all processes: each first
// updates a row of the table of offsets, that of the group millrace-publishers, which counts as
// having acked everything. watermill-sql's own publisher does not: where two publish at the same
// time and one of them is that, messages can be lost.
//
// # What is not done
//
// watermill-sql deletes nothing: the tables grow. You can delete what all groups have acked, on
// PostgreSQL by
//
//	DELETE FROM "watermill_orders" WHERE (transaction_id, "offset") <= (
//		SELECT last_processed_transaction_id, offset_acked FROM "watermill_offsets_orders"
//		ORDER BY 1, 2 LIMIT 1)
//
// and on MySQL by
//
//	DELETE FROM `watermill_orders` WHERE `offset` <= (
//		SELECT MIN(COALESCE(offset_acked, 0)) FROM `watermill_offsets_orders`
//		WHERE consumer_group <> 'millrace-publishers')
//
// Where no group has a row, they delete nothing. A group that no longer exists keeps everything; delete its row. A new group begins with what is
// still there.
package watermillsql
