package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/internal/secret"
)

// streams are the input of a command, and where it writes results and diagnostics.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// app is one run of the command.
type app struct {
	out, err  io.Writer // without secrets
	results   *results  // what out writes to
	env       func(string) string
	secrets   *secrets
	screen    bool // results go to a terminal …
	terminal  bool // … and diagnostics do
	flags     globals
	started   bool            // the flags and arguments were valid
	named     []*place        // the databases that the user named; nil until places
	context   string          // the context that they are of
	at        *place          // the one that the command works on
	several   bool            // it works on one after the other
	lenient   bool            // a database that cannot be reached may be opened
	interrupt context.Context //nolint:containedctx // ends with Ctrl-C, unlike a timeout
}

// globals are the flags that every command has.
type globals struct {
	dsn       []string
	on        string
	context   string
	schema    string
	prefix    string
	namespace string
	json      bool
	output    string
	timeout   time.Duration
}

// run runs the command in args and returns its exit code.
func run(ctx context.Context, args []string, std streams, env func(string) string) int {
	hidden, out := &secrets{}, &results{to: std.out}
	a := &app{
		out: scrubbed{out, hidden}, results: out, err: scrubbed{std.err, hidden}, env: env, secrets: hidden,
		screen: isTerminal(std.out), terminal: isTerminal(std.err), interrupt: ctx,
	}
	root := a.root() //nolint:contextcheck // its commands get theirs from ExecuteContext
	hidden.words = wordsOf(root)
	root.SetArgs(args)
	root.SetIn(std.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	cmd, err := root.ExecuteContextC(ctx)
	err = errors.Join(err, a.close())
	return a.unwritten(cmd, a.report(err), err)
}

func isTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	return ok && isatty.IsTerminal(file.Fd())
}

// work is the body of a command.
type work func(ctx context.Context, args []string) error

// body is a work as cobra calls it.
type body func(*cobra.Command, []string) error

// do turns w into the body of a command. The context of w ends after --timeout.
func (a *app) do(w work) body { return a.limited(w, always, a.one) }

// doLong is do for commands without a time limit, unless --timeout is given.
func (a *app) doLong(w work) body { return a.limited(w, ifAsked, a.one) }

// doEach is do for commands that work on each database, if the user named several.
func (a *app) doEach(w work) body { return a.limited(w, always, a.each) }

// doLongEach is doLong for them.
func (a *app) doLongEach(w work) body { return a.limited(w, ifAsked, a.each) }

func always(*cobra.Command) bool { return true }

func never(*cobra.Command) bool { return false }

func ifAsked(cmd *cobra.Command) bool { return cmd.Flags().Changed("timeout") }

func (a *app) limited(w work, bounded func(*cobra.Command) bool, on func(context.Context, func(context.Context) error) error) body {
	return func(cmd *cobra.Command, args []string) error {
		a.started = true
		return on(cmd.Context(), func(ctx context.Context) error {
			if bounded(cmd) {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, a.flags.timeout)
				defer cancel()
			}
			return w(ctx, args)
		})
	}
}

// printf writes results. Whether they could be written shows at the end.
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
	a.notef("millrace: %s\n", spoken(err))
	if hint := a.hint(err); hint != "" {
		a.notef("%s\n", hint)
	}
	return code
}

// spoken returns the text of err for the user.
func spoken(err error) string {
	if errors.Is(err, errNoDSN) || errors.Is(err, errForm) || errors.Is(err, errMySQL) || errors.Is(err, errPostgres) || errors.Is(err, errNoAMQP) {
		return err.Error() // the examples are nobody's
	}
	return printable(secret.WithoutCredentials(strings.TrimSpace(err.Error())))
}
