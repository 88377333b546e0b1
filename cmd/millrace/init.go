package main

import (
	"context"
	_ "embed"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/cmd/millrace/internal/skeleton"
)

// goMod has the versions with which this command was built.
//
//go:embed go.mod
var goMod string

func (a *app) initCommand() *cobra.Command {
	var s skeleton.Service
	var beside, dry bool
	cmd := &cobra.Command{
		Use:   "init --module PATH [DIR]",
		Short: "Write a service that runs, with its tests and all that watches it",
		Long: `Writes a service into the folder DIR, or into this one: a handler, its wiring, a main that
shuts down in order, a test that kills it at each of its calls, and a compose file with the
database, the broker, the dashboard, Prometheus with the alerts, and Grafana. It asks
nothing, needs no database and no network, and overwrites nothing.

The folder must be empty but for .git, unless --beside is given. If the command fails or is
interrupted, it removes what it has written.`,
		Example: "  millrace init --module example.com/billing billing\n" +
			"  millrace init --module example.com/billing --database mysql --broker kafka --outbox --queue billing\n" +
			"  millrace init --module example.com/billing --policy --dry-run",
		Args: cobra.MaximumNArgs(1),
	}
	flags := cmd.Flags()
	flags.StringVar(&s.Module, "module", "", "the `path` of the service's Go module")
	flags.StringVar(&s.Database, "database", skeleton.Databases[0], "the `database`: "+strings.Join(skeleton.Databases, ", ")+"; mysql is for MariaDB too")
	flags.StringVar(&s.Broker, "broker", skeleton.Brokers[0], "the `broker`: "+strings.Join(skeleton.Brokers, ", ")+"; sql is watermill-sql, in the database")
	flags.BoolVar(&s.Outbox, "outbox", false, "send messages with the handler's commit, by an outbox and its relay")
	flags.BoolVar(&s.Queue, "queue", false, "store messages that fail, and try them again from the table; with each broker but rabbitmq unless --queue=false")
	flags.BoolVar(&s.Gate, "gate", false, "apply the messages of an account in the order of their versions; brings the queue with it")
	flags.BoolVar(&s.Policy, "policy", false, "keep the rules of the handlers in a file, policy.yaml")
	flags.BoolVar(&beside, "beside", false, "write beside the files that the folder has")
	flags.BoolVarP(&dry, "dry-run", "n", false, "list the files, and write none")
	complete(cmd, "database", skeleton.Databases)
	complete(cmd, "broker", skeleton.Brokers)
	cmd.RunE = a.do(func(ctx context.Context, args []string) error {
		dir := "."
		if len(args) > 0 {
			dir = args[0]
		}
		if !flags.Changed("queue") {
			s.Queue = s.HoldsUp()
		}
		return a.initialize(ctx, s, filepath.Clean(dir), beside, dry)
	})
	return cmd
}

// initialized is the result of init, in JSON.
type initialized struct {
	Folder string   `json:"folder"`
	Files  []string `json:"files"`
}

func (a *app) initialize(ctx context.Context, s skeleton.Service, dir string, beside, dry bool) error {
	if err := s.Validate(); err != nil {
		return &coded{exitUsage, err}
	}
	versions, err := skeleton.VersionsOf(goMod)
	if err != nil {
		return err
	}
	files, err := s.Files(versions)
	if err != nil {
		return err
	}
	if !dry {
		if err := skeleton.Write(ctx, dir, files, beside); err != nil {
			return err
		}
	}
	done := initialized{Folder: dir}
	for _, f := range files {
		done.Files = append(done.Files, f.Name)
	}
	return a.print(done, func() string {
		if dry {
			return strings.Join(done.Files, "\n") + "\n"
		}
		text := fmt.Sprintf("%s is in %s: README.md says how to go on. Begin with:\n", s.Name(), oneLine(dir))
		if dir != "." {
			text += "  cd " + word(dir) + "\n"
		}
		return text + "  go mod tidy\n  docker compose up --build\n"
	})
}
