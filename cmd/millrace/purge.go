package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
)

func (a *app) purgeCommand() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "purge",
		Short: "Delete the claims older than each consumer's retention, once",
		Long: `Does once what the janitor of a service does all the time: it deletes claims that are
older than their consumer's retention, and other expired rows. It keeps claims whose outcome
may not be published. If you stop it, the next purge deletes the rest.

Do not purge for a service that sets Config.Archive: this command deletes claims without
archiving them.

Without --yes it counts what has expired among the first 100000 claims of each consumer,
and exits with 2.`,
		Example: "  millrace purge\n  millrace purge --yes",
		Args:    cobra.NoArgs,
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do it; without it nothing is deleted")
	cmd.RunE = a.doLong(func(ctx context.Context, _ []string) error {
		if !yes {
			return a.proposePurge(ctx)
		}
		return a.purge(ctx)
	})
	return cmd
}

func (a *app) proposePurge(ctx context.Context) error {
	const lookAt = 100_000
	store, err := a.store(ctx)
	if err != nil {
		return err
	}
	expired, err := admin.New(store).Expired(ctx, lookAt)
	if err != nil {
		return err
	}
	all := []map[string]any{}
	for _, e := range expired {
		all = append(all, map[string]any{"consumer": e.Consumer, "epoch": e.Epoch, "expired": countOf(e.Claims)})
	}
	err = a.print(map[string]any{"would": "purge", "consumers": all}, func() string { return expiredTable(expired) })
	if err != nil {
		return err
	}
	if len(expired) > 0 {
		a.notef("They are deleted without Config.Archive: leave that to a service that sets it.\n")
	}
	a.unchanged("deleted", "--yes")
	return &silent{exitUsage}
}

func expiredTable(expired []admin.Expired) string {
	if len(expired) == 0 {
		return "No claim has expired.\n"
	}
	t := newTable("CONSUMER", "EPOCH", "EXPIRED CLAIMS")
	for _, e := range expired {
		t.add(e.Consumer, e.Epoch, e.Claims)
	}
	return t.String()
}

func (a *app) purge(ctx context.Context) error {
	bar, seen := a.progress("purged", admin.Count{}), 0
	// The janitor hands Archive the claims that it is about to delete, which is all that a bar
	// needs.
	store, err := a.storeWith(ctx, tuned, inbox.Config{Archive: func(_ context.Context, claims []inbox.ExpiredClaim) error {
		seen += len(claims)
		bar.at(seen)
		return nil
	}})
	if err != nil {
		return err
	}
	n, err := store.Purge(ctx)
	bar.end()
	shown := a.print(map[string]any{"purged": n}, func() string {
		if n == 1 {
			return "1 expired claim deleted\n"
		}
		return fmt.Sprintf("%d expired claims deleted\n", n)
	})
	return errors.Join(err, shown)
}
