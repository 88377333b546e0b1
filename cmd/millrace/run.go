package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"
)

// streams are the input of a command, and where it writes results and diagnostics.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// app is one run of the command.
type app struct {
	out, err  io.Writer // without secrets
	env       func(string) string
	secrets   *secrets
	screen    bool // results go to a terminal …
	terminal  bool // … and diagnostics do
	flags     globals
	started   bool // the flags and arguments were valid
	db        *sqlx.DB
	dialect   string
	interrupt context.Context //nolint:containedctx // ends with Ctrl-C, unlike a timeout
}

// globals are the flags that every command has.
type globals struct {
	dsn       string
	schema    string
	prefix    string
	namespace string
	json      bool
	timeout   time.Duration
}

// run runs the command in args and returns its exit code.
func run(ctx context.Context, args []string, std streams, env func(string) string) int {
	hidden := &secrets{}
	a := &app{
		out: scrubbed{std.out, hidden}, err: scrubbed{std.err, hidden}, env: env, secrets: hidden,
		screen: isTerminal(std.out), terminal: isTerminal(std.err), interrupt: ctx,
	}
	root := a.root() //nolint:contextcheck // its commands get theirs from ExecuteContext
	root.SetArgs(args)
	root.SetIn(std.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	err := root.ExecuteContext(ctx)
	if a.db != nil {
		err = errors.Join(err, a.db.Close())
	}
	return a.report(err)
}

func isTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	return ok && isatty.IsTerminal(file.Fd())
}

// do turns work into the body of a command. The context of work ends after --timeout.
func (a *app) do(work func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return a.limited(work, func(*cobra.Command) bool { return true })
}

// doLong is do for commands without a time limit, unless --timeout is given.
func (a *app) doLong(work func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return a.limited(work, func(cmd *cobra.Command) bool { return cmd.Flags().Changed("timeout") })
}

func (a *app) limited(
	work func(ctx context.Context, args []string) error, bounded func(*cobra.Command) bool,
) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		a.started = true
		ctx := cmd.Context()
		if bounded(cmd) {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, a.flags.timeout)
			defer cancel()
		}
		return work(ctx, args)
	}
}

// printf writes results. A reader that has gone away is not an error.
func (a *app) printf(format string, args ...any) { _, _ = fmt.Fprintf(a.out, format, args...) }

// notef writes diagnostics.
func (a *app) notef(format string, args ...any) { _, _ = fmt.Fprintf(a.err, format, args...) }

// report prints err and returns the exit code.
func (a *app) report(err error) int {
	if err == nil {
		return exitDone
	}
	err = a.understood(err)
	code := exitCode(err)
	var quiet *silent
	if errors.As(err, &quiet) {
		return code
	}
	a.notef("millrace: %s\n", withoutCredentials(strings.TrimSpace(err.Error())))
	if hint := a.hint(err); hint != "" {
		a.notef("%s\n", hint)
	}
	return code
}
