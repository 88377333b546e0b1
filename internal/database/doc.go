// Package database is a service's pool as every part of Millrace uses it. It runs short
// transactions of our own at READ COMMITTED, retries them after a deadlock, and queues writers on a
// database that takes one at a time. Its errors say what to do.
package database
