// Package inboxlint has analyzers for the handlers of Millrace: each finds one
// mistake that the compiler cannot see and that a test finds only if a process
// dies at the right moment.
//
//	go vet -vettool=$(which inboxlint) ./...
//
// What each of them reports, and what it cannot know, is in docs/inboxlint.md.
//
// # What counts as a handler
//
// A function that cannot go on without the transaction: it calls inbox.Tx or
// pgxdb.Tx and returns the error. So does a function that a wiring in the same
// package shows to be inside an Inbox: one given to Inbox.Middleware, to a
// Batch, or to a router that has an Inbox without Skip. Function literals in it
// count if they run in it for certain: those that are called, deferred or
// started at once, and those given to outbox.InTx.
//
// What is known of a variable is what the package assigns to it. If one of its
// values can come from elsewhere, such as a parameter, nothing is reported.
package inboxlint
