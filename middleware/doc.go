// Package middleware puts Millrace into a Watermill router. Watermill's own package has
// the same name, so import this one as millrace:
//
//	import millrace "github.com/millrace-go/millrace/middleware"
//
// [Inbox] runs handlers in a transaction that also records the message as handled: their
// effects happen exactly once. [Deduplicate] is for handlers without a transaction: it
// keeps a message's key only if the handler succeeded. [VersionGate], inside Inbox, applies
// the messages of each aggregate in the order of their versions.
//
// # Order
//
// From the outside in: Retry, Inbox, VersionGate, CorrelationID, Timeout, Recoverer,
// handler. Retry inside Inbox would run the handler again in the transaction of the failed
// run; a PoisonQueue or IgnoreErrors inside would make a failure look like a success, and
// half of its work would be committed. InstantAck has no place beside Inbox at all.
//
// What stands between Inbox and VersionGate sees messages that the gate does not let
// through, as if their handler had succeeded; it must produce nothing for them.
//
// Deduplicate stands where Inbox would, on handlers that have none; inside Inbox it is
// refused, since it would remember a message that the inbox rolls back.
package middleware
