// Package inboxtest tests that the effects of a handler happen exactly once, wherever its
// process dies: in a go test, in seconds, without a change to the handler.
//
// A [Scenario] is a service, wired as in its main, its input messages, and a function that reads
// its effects. [Exhaust] plays the scenario once undisturbed and records each point at which the
// service calls the database, the broker, or something outside through [Process.External]. Then
// it plays the scenario again from scratch, for each point and each fault:
//
//   - the process crashes before the call, or after it;
//   - the connection breaks before the call, or after it: for instance, a commit succeeds but is
//     reported as failed;
//   - the database refuses a statement; the broker refuses a message, or reports one that it has
//     accepted as failed;
//   - the answer comes too late: the caller has given up;
//   - the context of a statement ends while the statement runs;
//   - the handler panics, or a callback that calls [Process.Callback] does;
//   - another process gets the same message at this moment;
//   - the router is closed.
//
// If the fault ended the process, another one starts. The broker redelivers unacked messages until
// nothing is left to do. Then the ledger, the published messages and the open messages must be the
// same as after the undisturbed play. A play that ends differently is reported as a timeline, with
// the line that plays it again:
//
//	inboxtest: crash after m1 COMMIT
//	  I3: never published: receipts "10"
//	     8.7 ms  process 1  m1 is delivered, for the 1st time
//	     9.1 ms  process 1  m1 INSERT orders  (shop.go:31)
//	     9.6 ms  process 1  m1 COMMIT  <== CRASH AFTER
//	     …
//	  play it again: inboxtest.Replay(t, scenario, "crash after m1 COMMIT")
//
// m1 is the first input; docs/testing-your-handlers.md has the rules I1 to I7. m1stored is a run of it that a
// pubsub.Durable begins from its table. The points of background work are called work: each gets few faults, twice.
//
// [Random] plays several faults in a row, [Pairs] all pairs of faults. [Duplicate],
// [CrashAfterCommit] and the others test one property each, and fail if the service makes no call at
// which it could break. [ReplayMode] tests that a replay of handled messages does nothing twice.
//
// # Wiring mistakes
//
// A service can be wired wrongly and still produce the right result. The package reports these
// mistakes with the line to blame: a write outside of the inbox's transaction, a message published
// before the commit, the transaction used in another goroutine, a handler that runs twice in one
// transaction (Retry inside of Inbox), a failed handler whose transaction is committed
// (PoisonQueue inside of Inbox), a message acked while its handler runs.
//
// # What a play simulates, and what not
//
// A crash ends a process: from that moment nothing it does reaches the database or the broker, and
// its connections are closed. Files and HTTP calls are not cut off, unless they go through
// [Process.External]. The database is real: SQLite, or those that the scenario names, in which each
// play first drops all tables, see [Database]. The database itself does not crash, and faults
// happen only while the router runs, not at the start of a process.
//
// The broker hands out one message at a time, unless [Scenario.InFlight] says otherwise, so a play
// is repeatable. A batch needs as many as it has messages. Background work runs freely, so a fault
// may find no call to happen at; the test's log counts those.
package inboxtest
