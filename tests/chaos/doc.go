// Package chaos runs a pipeline of Millrace in processes of their own, on servers of its own,
// and lets a monkey at them: it kills and freezes processes, servers and connections for a
// given time, while a ledger in the database keeps what has to be. When the monkey is done, all
// that was promised must be there, once and in order, and nothing may be stuck.
//
//	make chaos CHAOS_TIME=10m
//
// Each member is a whole service, so that its death takes everything with it at once:
//
//	producer → outbox → relay → RabbitMQ → Durable, Inbox, VersionGate → apply
//	                          ← outbox ← receipts
//	         → relay → watermill-sql → Inbox → book
//	         → relay → RabbitMQ → Batch → sum
package chaos
