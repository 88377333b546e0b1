// Package middleware puts Millrace into a Watermill router. Watermill's own package has the same
// name, so import this one as millrace:
//
//	import millrace "github.com/millrace-go/millrace/middleware"
//
// [Inbox] runs a handler in a transaction that also records the message as handled: its effects
// happen exactly once. [Deduplicate] is for handlers without a transaction: it keeps a message's
// key only if the handler succeeded. [VersionGate], inside Inbox, applies the messages of each
// aggregate in the order of their versions. [Batch] makes a handler that gets many messages in one
// transaction.
//
// # Order
//
// From the outside in: Retry, Inbox, VersionGate, CorrelationID, Timeout, Recoverer, handler.
// Retry, PoisonQueue and IgnoreErrors go outside. Inside, Inbox refuses a second run, and a failure
// that looks like a success, with inbox.ErrSwallowed. Deduplicate refuses the latter alike, and has
// nothing against Retry inside. With inbox.Config.WithoutPlugin it notices
// neither, and commits half of the handler's work. Never use InstantAck with Inbox.
//
// A middleware between Inbox and VersionGate also sees messages that the gate does not let
// through, as if their handler had succeeded; it must produce nothing for them.
//
// Deduplicate goes where Inbox would, on handlers without one. Inside Inbox it is refused: it would
// remember a message that the inbox rolls back. So it is outside of Inbox, VersionGate or Batch: it
// would drop a message that these have held or parked when it comes again.
package middleware
