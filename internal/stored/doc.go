// Package stored knows what is stored of an inbox, and what a running inbox and its operators both do with
// that: find a consumer or a message, have a message tried again, and keep who decided it.
package stored
