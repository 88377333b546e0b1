// Package replay_test sends messages again: into a projection and beside a consumer with side effects,
// from the archive, the journal and dead letters, with processes that are killed on the way.
package replay_test
