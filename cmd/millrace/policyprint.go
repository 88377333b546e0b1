package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/policy"
)

func (a *app) policyPrintCommand() *cobra.Command {
	var handler string
	cmd := &cobra.Command{
		Use:   "print FILE",
		Short: "Show the settings of each handler, and where they come from",
		Long: `Shows the settings of each handler, and where they come from: its own rules, the defaults of
the file, a field that implies them, or Millrace. It leaves out settings that the handler's
strategy does not use.`,
		Example:           "  millrace policy print policy.yaml\n  millrace policy print policy.yaml --handler mailer --json",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completePolicy,
	}
	cmd.Flags().StringVar(&handler, "handler", "", "only this `handler`; if the file does not name it, the defaults apply")
	if err := cmd.RegisterFlagCompletionFunc("handler", completeHandler); err != nil {
		panic(err) // the flag does not exist
	}
	cmd.RunE = a.do(func(_ context.Context, args []string) error {
		if cmd.Flags().Changed("handler") {
			return a.policyPrint(args[0], &handler)
		}
		return a.policyPrint(args[0], nil)
	})
	return cmd
}

// completeHandler completes --handler with the handlers that the file names.
func completeHandler(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) != 1 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	p, err := policy.ReadFile(args[0])
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return handlersOf(p), cobra.ShellCompDirectiveNoFileComp
}

// explained holds the settings of a handler in JSON.
type explained struct {
	Handler  *string   `json:"handler"` // null: every handler that is not named
	Settings []setting `json:"settings"`
}

type setting struct {
	Field string `json:"field"`
	Value string `json:"value"`
	From  string `json:"from"`
}

func (a *app) policyPrint(file string, only *string) error {
	p, err := readPolicy(file)
	if err != nil {
		return err
	}
	all := []explained{}
	if only != nil {
		settings := p.Explain(*only)
		if settings == nil {
			return notFoundf("%s is strict and does not name the handler %q: it names %s", file, *only, strings.Join(handlersOf(p), ", "))
		}
		all = append(all, explained{only, settingsOf(settings)})
	} else {
		for _, handler := range handlersOf(p) {
			all = append(all, explained{&handler, settingsOf(p.Explain(handler))})
		}
		if settings := p.Explain(""); settings != nil {
			all = append(all, explained{nil, settingsOf(settings)})
		}
	}
	return a.print(map[string]any{"handlers": all}, func() string { return explainedText(all) })
}

func settingsOf(settings []policy.Setting) []setting {
	all := make([]setting, 0, len(settings))
	for _, s := range settings {
		all = append(all, setting{s.Field, s.Value, s.From})
	}
	return all
}

func explainedText(handlers []explained) string {
	t := newTable("HANDLER", "FIELD", "VALUE", "FROM")
	for i, h := range handlers {
		if i > 0 {
			t.add("", "", "", "")
		}
		name := "(any other)"
		if h.Handler != nil {
			name = *h.Handler
		}
		for _, s := range h.Settings {
			t.add(name, s.Field, s.Value, s.From)
		}
	}
	return t.String()
}
