package main

import (
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/internal/dialect"
)

const about = `Millrace shows what happened to every message that the inbox and the outbox of a
service know, and retries or discards those that are stuck.

The database is named by --dsn or MILLRACE_DSN:

  postgres://user:password@host/database
  mysql://user:password@host/database, or user:password@tcp(host:3306)/database
  sqlite:path/to/file.db, or file:path/to/file.db?...

or by a context, see millrace context --help.

Give it the service's own DSN, so that check sees the settings that the service has.
A service with several databases names each, NAME=DSN, between spaces in MILLRACE_DSN
or with a --dsn for each. What only reads works on all of them, and what changes
something on the one that --on names.

Exit codes: 0 done; 1 failed, or check found errors; 2 a wrong call, or a
confirmation is missing; 3 no such message or consumer, or an action matched
nothing; 4 the database cannot be reached; 5 the state of the message, step,
aggregate or replay does not allow this; 130 interrupted.`

const rootExamples = `  export MILLRACE_DSN=postgres://millrace@db.internal/shop
  millrace check
  millrace status --watch
  millrace list --status parked --consumer billing
  millrace explain 0190b7a4-4d3c-7bd2-8e0c-2b54f6a3c1de
  millrace retry 1207 --reason 'the bank is back' --yes`

// root returns the command with all its subcommands.
func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "millrace",
		Short:         "See the messages of the inbox and the outbox, and retry or discard them",
		Long:          about,
		Example:       rootExamples,
		Version:       built().String(),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetVersionTemplate("millrace {{.Version}}\n")
	flags := root.PersistentFlags()
	flags.StringArrayVar(&a.flags.dsn, "dsn", nil, "the `database`; MILLRACE_DSN, which no other user of the host sees, is better")
	flags.StringVar(&a.flags.context, "context", "", "the database of this `name` in the contexts file, see millrace context")
	flags.StringVar(&a.flags.on, "on", "", "of several databases, the one with this `name`")
	flags.StringVar(&a.flags.schema, "schema", "", "the PostgreSQL `schema` of the tables")
	flags.StringVar(&a.flags.prefix, "prefix", dialect.DefaultPrefix, "the `prefix` of the tables' names")
	flags.StringVar(&a.flags.namespace, "namespace", "", "the `namespace` of the consumers")
	flags.BoolVar(&a.flags.json, "json", false, "print JSON, as -o json does")
	flags.StringVarP(&a.flags.output, "output", "o", "text", "the `form` of results: "+strings.Join(outputs, ", ")+"; wide is for status and processes, csv for audit")
	flags.DurationVar(&a.flags.timeout, "timeout", 30*time.Second, "give up after so long; what works in batches has no limit unless this is given")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return a.understandGlobals(cmd) }
	complete(root, "output", outputs)
	if err := root.RegisterFlagCompletionFunc("context", a.contextNames); err != nil {
		panic(err) // the flag does not exist
	}
	root.AddCommand(
		a.statusCommand(), a.processesCommand(), a.listCommand(), a.waitingCommand(), a.explainCommand(), a.auditCommand(), a.checkCommand(),
		a.retryCommand(), a.discardCommand(), a.replayCommand(), a.pauseCommand(), a.resumeCommand(),
		a.setVersionCommand(), a.skipGapCommand(), a.redispatchCommand(), a.payloadCommand(),
		a.outboxCommand(), a.stepsCommand(), a.purgeCommand(), a.importCommand(), a.migrateCommand(), a.schemaCommand(), a.policyCommand(), a.initCommand(), a.uiCommand(), a.contextCommand(), a.versionCommand(),
	)
	return root
}
