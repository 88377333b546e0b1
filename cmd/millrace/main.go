// Command millrace is the operator's tool: it shows what became of every message that the
// inbox and the outbox know, and mends what is stuck. See docs/command.md.
//
// It exits with 0 when it did what was asked, with 1 when that failed or a check found
// errors, with 2 for a wrong call or a missing confirmation, with 3 when there is no such
// message or consumer, and with 4 when the database cannot be reached.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], streams{os.Stdin, os.Stdout, os.Stderr}, os.Getenv)
	stop()
	os.Exit(code)
}
