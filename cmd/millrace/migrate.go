package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
)

func (a *app) migrateCommand() *cobra.Command {
	var dry bool
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Create the tables, or bring them up to this release",
		Long: `Creates the tables of the inbox and the outbox, or brings them up to this release, and
says what it did. It is idempotent, and safe while services run. Two adjacent releases
work with one schema: migrate first, then replace the processes.

With --dry-run it prints what it would run, and exits with 0.`,
		Example: "  millrace migrate --dry-run\n  millrace migrate",
		Args:    cobra.NoArgs,
	}
	cmd.Flags().BoolVar(&dry, "dry-run", false, "print what it would run, and run nothing")
	cmd.RunE = a.doLongEach(func(ctx context.Context, _ []string) error { return a.migrate(ctx, dry) })
	return cmd
}

// migration is a migration in JSON.
type migration struct {
	Version int    `json:"version"`
	DDL     string `json:"ddl,omitempty"`
}

func (a *app) migrate(ctx context.Context, dry bool) error {
	how := making
	if dry {
		how = supposing
	}
	store, err := a.storeWith(ctx, how, inbox.Config{})
	if err != nil {
		return err
	}
	pending, err := admin.New(store).Pending(ctx)
	if err != nil {
		return err
	}
	if dry {
		return a.printPending(pending)
	}
	if err := store.Migrate(ctx); err != nil {
		return err
	}
	applied := []migration{}
	for _, p := range pending {
		applied = append(applied, migration{Version: p.Version})
	}
	return a.print(map[string]any{"applied": applied}, func() string {
		if len(pending) == 0 {
			return "The tables are up to date.\n"
		}
		return fmt.Sprintf("Migrated to version %d of the schema.\n", pending[len(pending)-1].Version)
	})
}

func (a *app) printPending(pending []admin.Migration) error {
	all := []migration{}
	var b strings.Builder
	for _, p := range pending {
		all = append(all, migration{p.Version, p.DDL})
		fmt.Fprintf(&b, "-- migration %d\n%s\n", p.Version, p.DDL)
	}
	if len(pending) == 0 {
		b.WriteString("The tables are up to date.\n")
	}
	return a.print(map[string]any{"pending": all}, b.String)
}
