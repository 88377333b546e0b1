// Package outbox stores messages in the transaction that makes them true, and relays them
// to a broker once it is committed.
package outbox
