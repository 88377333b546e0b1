// Package inbox records, in a service's own database, which messages its consumers have handled,
// and gives each handler the transaction of that record: what the handler writes through [Tx] and
// the record are committed together or not at all.
//
//	store, err := inbox.NewStore(db, inbox.Config{}) // db is its *sqlx.DB
//	err = store.Migrate(ctx)                          // or apply store.Schema()
//	millrace.Inbox{Store: store}.AddTo(router)        // package middleware; checks, guards, purges, settles
//	err = store.Close(ctx)                            // when Router.Run has returned; then db.Close()
//
//	tx, err := inbox.Tx(msg.Context())                // in a handler
//
// Effects written through [Tx] happen exactly once per consumer and [Key], for the consumer's
// retention; an older message that carries its own time is parked instead of handled. HTTP calls,
// e-mails and writes through the pool happen again whenever the handler runs again, as it does after
// each failure: they need an idempotency key, see [ID], or a [Step]. Messages that a handler returns
// are published at least once, always with the same UUIDs, bytes and metadata.
//
// In the order in which a service needs them: [NewStore] and [Config]; [Tx], [SetResult] and [Once]
// for handlers; [Terminal] and [RetryAfter] for their errors; [Key] and [Options] for
// middleware.Inbox; [Version] for middleware.VersionGate; [Leases] for middleware.Deduplicate;
// [Observer] for what happens. Operators have package inbox/admin. [ConsumerConfig], [GateConfig],
// [LeaseConfig], [QueueConfig], [Queue], [Leased] and [Internals] are for middlewares and pubsub.
package inbox

// In the tables a completed message is one narrow row, its claim, which is deleted after the
// retention. A message that is open, because it is parked or failed for instance, is stored whole.
// Config.Payloads encrypts stored payloads; Config.BlobsAbove keeps large ones outside their rows.

// Glossary, for readers of the code:
//
//	delivery   a message that a subscriber hands to a consumer, once
//	copy       another delivery of the same message: the same key, the same payload
//	collision  a message with the key, but not the payload, of another
//	claim      the row that says that a key is taken; it is completed or open
//	open row   the row in the messages table that keeps a message whole while its claim is open
//	outcome    the messages that a handler returned, stored until the broker has them
//	settle     to delete an outcome, once the broker has it
//	turn       the right to work on a key, in this process
//	slot       the right to have a transaction open, in this process
//	lease      the right to work on something for a time: a stored message, a step, a key of Deduplicate
//	attempt    a run of the handler that counts against MaxAttempts
//	hold       to store a message until its predecessor is applied
//	park       to store a message for an operator
//	queue      delivers stored messages to their consumer
//	take       to lease stored messages that are due
//	gap        the versions that are missing before a message
//	step       a call outside the transaction that is recorded by itself
//	epoch      a number that is raised to handle everything again
//	pass       a probe of a database that was down, which one delivery makes for all
