package engine

import "github.com/millrace-go/millrace/internal/dialect"

// tries are in the order in which they are made and printed: the first makes the tables.
var tries = []try{
	{
		name: "the tables can be made", parts: "migration", run: tables,
		remedy: "make them by your own migrations, from millrace schema, in the form that this server takes",
	},
	{
		name: "migrations exclude each other", parts: "migration", only: dialect.PostgresName, run: migrationsExclude,
		remedy: "run Migrate in one process at a time, or apply millrace schema by your own migrations",
	},
	{
		name: "a duplicate is counted as one", parts: "inbox", run: duplicatesAreCounted,
		remedy: "none: the inbox does not work on this server",
	},
	{
		name: "a copy waits, and after a commit is a duplicate", parts: "inbox, queue, version gate", run: copyWaitsForCommit,
		remedy: "if a short lock_timeout or NOWAIT makes it fail, raise it above TwinWait; otherwise the inbox does not work on this server",
	},
	{
		name: "a copy waits, and after a rollback has the claim", parts: "inbox, queue, version gate", run: copyTakesOverAfterRollback,
		remedy: "if a short lock_timeout or NOWAIT makes it fail, raise it above TwinWait; otherwise the inbox does not work on this server",
	},
	{
		name: "a transaction at READ COMMITTED sees later commits", parts: "inbox, version gate, queue", run: rereads,
		remedy: "enable READ COMMITTED on the server",
	},
	{
		name: "a write that waited works on the new row", parts: "inbox, version gate, queue", run: waitedSeesTheRow,
		remedy: "enable READ COMMITTED on the server, and set no lock_timeout below TwinWait",
	},
	{
		name: "keys are compared byte by byte", parts: "inbox", run: keysAreBytes,
		remedy: "give the key columns a binary type or collation",
	},
	{
		name: "a lease is kept until it ends", parts: "Deduplicate with the Store's leases", run: leasesAreKept,
		remedy: "keep the leases of Deduplicate in Redis or in memory",
	},
	{
		name: "locked rows are skipped", parts: "janitor, queue", run: skipsLocked,
		remedy: "none: the janitor and the queue need SKIP LOCKED",
	},
	{
		name: "a failed statement fails its transaction", parts: "inbox, outbox", only: dialect.PostgresName, run: failuresAreNoticed,
		remedy: "handlers must return the error of each statement: nothing else will notice that it failed",
	},
	{
		name: "the end of a transaction is noticed", parts: "inbox, outbox", run: endsAreNoticed,
		remedy: "keep COMMIT, ROLLBACK and DDL out of handlers, and return the error of each statement",
	},
	{
		name: "ids grow in the order of transactions", parts: "order of a key in outbox and queue", run: idsInOrder,
		remedy: "without a cache of numbers for each connection or node (CACHE 1) they grow; otherwise do without the order of a key, " +
			"or read the outbox by change data capture",
	},
	{
		name: "all connections have one clock", parts: "leases of queue, relay and Deduplicate", run: oneClock,
		remedy: "synchronise the clocks of the nodes, and keep each lease far above their greatest difference",
	},
	{
		name: "the inbox handles a message once", parts: "inbox", run: inboxWorks,
		remedy: "none: this server refuses a statement of the inbox",
	},
	{
		name: "one statement claims and advances", parts: "version gate", only: dialect.PostgresName, run: claimsAndAdvances,
		remedy: "none: the version gate does not work on this server",
	},
	{
		name: "the relay sends in the order of a key", parts: "outbox", run: outboxWorks,
		remedy: "read the outbox by change data capture",
	},
	{
		name: "the queue tries a failed message again", parts: "pubsub.Durable", run: queueWorks,
		remedy: "leave redelivery to the broker",
	},
	{
		name: "notices arrive", parts: "wake-ups of relays", only: dialect.PostgresName, optional: true, run: notices,
		remedy: "none needed: relays look by themselves, and Config.AfterCommit wakes those of the process",
	},
}
