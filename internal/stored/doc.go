// Package stored reads and changes the rows of an inbox for a running inbox and for its operators:
// it finds consumers and messages, makes messages due, and records who decided that.
package stored
