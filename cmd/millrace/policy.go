package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/metrics"
	"github.com/millrace-go/millrace/policy"
)

func (a *app) policyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Check policy files, and show what they mean; without a database",
		Long: `Checks policy files before a service starts with them, shows the settings of each handler
and where they come from, and makes alert rules of their thresholds, without a database.`,
		Example: "  millrace policy check policy.yaml\n  millrace policy print policy.yaml --handler mailer\n" +
			"  millrace policy alerts policy.yaml > alerts/policy.yml",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unknown command %q for %q", args[0], cmd.CommandPath())
			}
			return cmd.Help()
		},
	}
	cmd.AddCommand(a.policyCheckCommand(), a.policyPrintCommand(), a.policySchemaCommand(), a.policyAlertsCommand())
	return cmd
}

// completePolicy offers files that may be policies.
func completePolicy(_ *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return []string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
}

func (a *app) policyCheckCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check FILE...",
		Short: "Find everything that is wrong with policy files",
		Long: `Reads policy files and shows all their problems, one line for each. Problems that only the
router can find, such as a handler that it does not have, show when the service starts.

Exits with 1 if there is a problem.`,
		Example:           "  millrace policy check policy.yaml\n  millrace policy check --json deploy/*/policy.yaml",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: completePolicy,
	}
	cmd.RunE = a.do(func(_ context.Context, files []string) error { return a.policyCheck(files) })
	return cmd
}

// checkedPolicy is the result of checking a file, in JSON.
type checkedPolicy struct {
	File     string          `json:"file"`
	Handlers []string        `json:"handlers"` // null: they could not be read
	Problems []policyProblem `json:"problems"`
}

type policyProblem struct {
	Line int    `json:"line"`
	Path string `json:"path"`
	Text string `json:"text"`
}

func (a *app) policyCheck(files []string) error {
	all, wrong := []checkedPolicy{}, 0
	var unread []error
	for _, file := range files {
		p, err := policy.ReadFile(file)
		var problems policy.Problems
		if err != nil && !errors.As(err, &problems) {
			unread = append(unread, err)
			continue
		}
		checked := checkedPolicy{File: file, Problems: []policyProblem{}}
		if err == nil {
			checked.Handlers = append([]string{}, handlersOf(p)...)
		}
		for _, problem := range problems {
			checked.Problems = append(checked.Problems, policyProblem{problem.Line, problem.Path, problem.Text})
		}
		all, wrong = append(all, checked), wrong+len(problems)
	}
	if err := a.print(map[string]any{"files": all}, func() string { return checkedText(all) }); err != nil {
		return err
	}
	if wrong > 0 && len(unread) == 0 {
		return &silent{exitFailed}
	}
	return errors.Join(unread...)
}

func checkedText(files []checkedPolicy) string {
	var b strings.Builder
	for _, f := range files {
		for _, p := range f.Problems {
			b.WriteString(oneLine(policy.Problem{File: f.File, Line: p.Line, Path: p.Path, Text: p.Text}.Error()) + "\n")
		}
		if len(f.Problems) == 0 {
			fmt.Fprintf(&b, "%s: nothing is wrong. Handlers that it names: %d.\n", f.File, len(f.Handlers))
		}
	}
	return b.String()
}

func (a *app) policySchemaCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "schema",
		Short:   "Print a JSON Schema of policy files, for editors",
		Example: "  millrace policy schema > policy.schema.json",
		Args:    cobra.NoArgs,
	}
	cmd.RunE = a.do(func(context.Context, []string) error {
		if a.flags.output == "yaml" {
			return a.document(json.RawMessage(policy.Schema()))
		}
		a.printf("%s", policy.Schema())
		return nil
	})
	return cmd
}

func (a *app) policyAlertsCommand() *cobra.Command {
	var namespace string
	cmd := &cobra.Command{
		Use:   "alerts FILE",
		Short: "Print rules for Prometheus, made of the thresholds",
		Long: `Prints a Prometheus rules file: a rule for each threshold of a consumer, and for each
threshold of the defaults a rule for all consumers that are not named.`,
		Example:           "  millrace policy alerts policy.yaml > alerts/policy.yml\n  promtool check rules alerts/policy.yml",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completePolicy,
	}
	cmd.Flags().StringVar(&namespace, "metrics", "millrace", "the `namespace` of the metrics: metrics.Config.Namespace")
	cmd.RunE = a.do(func(_ context.Context, args []string) error { return a.policyAlerts(args[0], namespace) })
	return cmd
}

func (a *app) policyAlerts(file, namespace string) error {
	if err := (metrics.Config{Namespace: namespace}).Validate(); err != nil {
		return usagef("--metrics: %w", err)
	}
	p, err := readPolicy(file)
	if err != nil {
		return err
	}
	thresholds := p.Defaults.Alerts != policy.Alerts{}
	for rules := range maps.Values(p.Consumers) {
		thresholds = thresholds || rules.Alerts != policy.Alerts{}
	}
	if !thresholds {
		return notFoundf("%s has no thresholds: write some below alerts, such as parked: 0", file)
	}
	rules := p.AlertRules(namespace)
	return a.print(map[string]string{"rules": string(rules)}, func() string { return string(rules) })
}

// readPolicy reads a policy that must be right.
func readPolicy(file string) (policy.Policy, error) {
	p, err := policy.ReadFile(file)
	if problems := (policy.Problems{}); errors.As(err, &problems) {
		err = fmt.Errorf("the policy is wrong:\n%w", err)
	}
	return p, err
}

// handlersOf returns the handlers that a policy names, for messages and for completion.
func handlersOf(p policy.Policy) []string { return slices.Sorted(maps.Keys(p.Consumers)) }
