package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
)

func (a *app) checkCommand() *cobra.Command {
	var strict, engine bool
	var nodes []string
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Find what is wrong with the database and with how consumers are set up",
		Long: `Checks the tables, and the server's settings as a connection with this DSN has them. Then it
checks each consumer: what makes two messages the same, how long the consumer remembers
them, whether a janitor deletes older claims, what a replay may do, and whether messages
are stored for a queue that no process serves.

With --engine it tries instead what the statements assume of the server: that copies of a
message wait for each other, that ids grow in the order of transactions, and so on. Run it on a
server that is no PostgreSQL, MySQL or MariaDB, but compatible with one, or behind a pooler. It
makes tables whose names begin with millrace_try_, and drops them, also after Ctrl-C. --node
names other nodes of the same database; with them the connections are spread over all.

Exits with 1 if there are errors, with --strict also if there are warnings. With --engine it
exits with 1 if a feature is unfit or could not be tried, with --strict also an optional one.`,
		Example: "  millrace check\n  millrace check --strict --json\n  millrace check --engine --node postgres://millrace@node2/shop",
		Args:    cobra.NoArgs,
	}
	cmd.Flags().BoolVar(&strict, "strict", false, "exit with 1 for warnings too")
	cmd.Flags().BoolVar(&engine, "engine", false, "try what the statements assume of the server")
	cmd.Flags().StringArrayVar(&nodes, "node", nil, "the `database` at another node, for --engine; may be repeated")
	try := func(ctx context.Context, _ []string) error {
		switch {
		case engine:
			return a.checkEngine(ctx, strict, nodes)
		case len(nodes) > 0:
			return usagef("--node is for --engine")
		}
		return a.check(ctx, strict)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		on := a.each
		if len(nodes) > 0 { // of one database
			on = a.one
		}
		return a.limited(try, func(cmd *cobra.Command) bool { return !engine || ifAsked(cmd) }, on)(cmd, args)
	}
	return cmd
}

// finding is a finding in JSON.
type finding struct {
	Severity string `json:"severity"`
	Subject  string `json:"subject"`
	Problem  string `json:"problem"`
	Remedy   string `json:"remedy"`
}

func (a *app) check(ctx context.Context, strict bool) error {
	store, err := a.storeWith(ctx, asGiven, inbox.Config{})
	if err != nil {
		return err
	}
	findings, err := store.Check(ctx)
	if err != nil {
		return err
	}
	var consumers []admin.KnownConsumer
	if !broken(findings) {
		if consumers, err = admin.New(store).Consumers(ctx); err != nil {
			return err
		}
	}
	newest := newestOnly(consumers)
	for _, c := range newest {
		findings = append(findings, judge(c)...)
	}
	if len(newest) > 0 {
		backlog, err := admin.New(store).Backlog(ctx, admin.BacklogOptions{})
		if err != nil {
			return err
		}
		findings = append(findings, judgeBacklog(newest, backlog)...)
	}
	if err := a.printCheck(findings, consumers); err != nil {
		return err
	}
	if broken(findings) || strict && len(findings) > 0 {
		return &silent{exitFailed}
	}
	return nil
}

// broken reports whether a finding is an error.
func broken(findings []inbox.Finding) bool {
	for _, f := range findings {
		if f.Severity == inbox.Error {
			return true
		}
	}
	return false
}

func (a *app) printCheck(findings []inbox.Finding, consumers []admin.KnownConsumer) error {
	all := []finding{}
	for _, f := range findings {
		all = append(all, finding{f.Severity.String(), f.Subject, f.Problem, f.Remedy})
	}
	setups := []setup{}
	for _, c := range consumers {
		setups = append(setups, setupOf(c))
	}
	return a.print(map[string]any{"findings": all, "consumers": setups}, func() string {
		return setupsTable(setups) + findingsText(findings)
	})
}

func findingsText(findings []inbox.Finding) string {
	if len(findings) == 0 {
		return "Nothing is wrong.\n"
	}
	var b strings.Builder
	for _, f := range findings {
		fmt.Fprintf(&b, "%s: %s\n  %s.\n  Remedy: %s.\n", f.Severity, f.Subject, f.Problem, f.Remedy)
	}
	return b.String()
}
