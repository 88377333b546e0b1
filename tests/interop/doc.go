// Package interop passes messages through the brokers that Watermill has pub/subs for, from
// an outbox to an inbox. It is a module of its own, so that their clients are no
// dependencies of Millrace.
package interop
