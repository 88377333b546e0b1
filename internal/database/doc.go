// Package database is a service's pool as every part of Millrace uses it: short transactions of
// our own at READ COMMITTED, tried again after a deadlock, in the writer's turn on a database
// that has one writer; and errors that say what to do.
package database
