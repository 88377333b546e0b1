// Command millrace is the operator's tool: it shows what happened to every message that the inbox
// and the outbox know, and changes those that are stuck. See docs/command.md.
//
// It exits with 0 when it did what was asked, with 1 when that failed or a check found errors, with
// 2 for a wrong call or a missing confirmation, with 3 when there is no such message or consumer,
// with 4 when the database cannot be reached, and with 5 when the state of the message does not
// allow the operation, and with 130 when it was interrupted. A second Ctrl-C or SIGTERM ends it at
// once.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal does what it does to any process
	code := run(ctx, os.Args[1:], streams{os.Stdin, os.Stdout, os.Stderr}, os.Getenv)
	stop()
	os.Exit(code)
}
