package main

import (
	"context"
	"slices"
	"time"

	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/spf13/cobra"
)

// complete offers fixed values for a flag.
func complete(cmd *cobra.Command, flag string, values []string) {
	err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	if err != nil {
		panic(err) // the flag does not exist
	}
}

// completeConsumer completes --consumer with the consumers of the database.
func (a *app) completeConsumer(cmd *cobra.Command) {
	if err := cmd.RegisterFlagCompletionFunc("consumer", a.consumerNames); err != nil {
		panic(err) // the flag does not exist
	}
}

// consumerNames asks the database, if one is named and answers soon. It returns no errors:
// completion must stay quiet.
func (a *app) consumerNames(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	const patience = 2 * time.Second
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), patience)
	defer cancel()
	if a.places() != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	store, err := a.store(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	consumers, err := admin.New(store).Consumers(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, c := range consumers {
		names = append(names, c.Name)
	}
	return slices.Compact(names), cobra.ShellCompDirectiveNoFileComp
}
