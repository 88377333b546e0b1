// Package inboxtest shows whether the effects of a handler happen exactly once, wherever its
// process dies: in a go test, in seconds, without a change to the handler.
//
// A [Scenario] is a service, wired as its main does it, its input messages, and a function
// that reads what it did. [Exhaust] plays it once undisturbed and notes each point at which
// the service calls the database, the broker, or something outside through
// [Process.External]. Then it plays it again for each point and each fault, from scratch:
//
//   - the process crashes before the call, or after it;
//   - the connection breaks before the call, or after it: a commit that was applied and is
//     reported as failed, for instance;
//   - the database refuses a statement, the broker a message, or has it and says it has not;
//   - the answer comes when nobody waits for it any more;
//   - the context of a statement ends while it runs;
//   - the handler panics, or a callback that calls [Process.Callback];
//   - another process is given the same message at this moment;
//   - the router is closed.
//
// After the fault another process is started where one is needed, and the broker redelivers
// what was not acked until nothing is left to do. Then the ledger, what was published and
// what is stored must be as after the undisturbed play. A play that ends otherwise is told as
// a timeline, with the line that plays it again:
//
//	inboxtest: crash after m1 COMMIT
//	  I3: never published: receipts "10"
//	     8.7 ms  process 1  m1 is delivered, for the 1st time
//	     9.1 ms  process 1  m1 INSERT orders  (shop.go:31)
//	     9.6 ms  process 1  m1 COMMIT  <== CRASH AFTER
//	     …
//	  play it again: inboxtest.Replay(t, scenario, "crash after m1 COMMIT")
//
// m1 is the first input, I1 to I7 are the invariants in docs/guarantees.md. A point of the
// background is called work.
//
// [Random] plays several faults one after the other, [Pairs] all pairs. [Duplicate],
// [CrashAfterCommit] and the others ask one question each; [ReplayMode] asks what a replay
// of handled messages does twice.
//
// # What it sees in the wiring
//
// A service can come to the right result and be wired wrongly. These are reported with the
// line to blame: a write past the transaction of the inbox, a message published before the
// commit, the transaction used in another goroutine, a handler that runs twice in one
// transaction (Retry inside of Inbox), a failed handler whose transaction is committed
// (PoisonQueue inside of Inbox), a message acked while its handler runs.
//
// # What a play is, and is not
//
// A crash is that of a process: from one moment on nothing it does reaches the database or
// the broker, and its connections are closed. What it does otherwise, in files or by
// HTTP, is not stopped, unless it goes through [Process.External]. The database is a real
// one: SQLite unless the scenario names others, in which everything is dropped before each
// play, see [Database]. It does not crash itself. The start of a
// process, before its router runs, is not disturbed.
//
// One message is handled at a time unless [Scenario.InFlight] says otherwise, so a play can
// be repeated; background work is not under control, and a fault that found nothing to
// happen to is counted in the test's log.
package inboxtest
