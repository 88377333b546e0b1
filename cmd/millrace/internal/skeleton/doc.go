// Package skeleton makes the files of a new service, for millrace init. The folder templates has them as a reader of
// the service sees them, with what depends on its choices between braces.
package skeleton
