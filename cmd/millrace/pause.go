package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/inbox/admin"
)

func (a *app) pauseCommand() *cobra.Command {
	return a.pausing("pause", "Stop the delivery of a consumer's stored messages",
		`Stops the queues of all processes from delivering the consumer's stored messages until
resume. A pubsub.Durable stores the messages that arrive meanwhile. Handlers that are running
finish. Without pubsub.Durable, pause stops nothing.`,
		`  millrace pause billing --reason 'the bank is down' --yes`, (*admin.Admin).Pause)
}

func (a *app) resumeCommand() *cobra.Command {
	return a.pausing("resume", "End a pause", "Lets queues deliver the consumer's stored messages again.",
		`  millrace resume billing --reason 'the bank is back' --yes`, (*admin.Admin).Resume)
}

func (a *app) pausing(
	name, what, long, example string,
	act func(ops *admin.Admin, ctx context.Context, consumer string, epoch int, by admin.Operator) error,
) *cobra.Command {
	cmd := &cobra.Command{
		Use: name + " CONSUMER", Short: what,
		Long: long + "\n\nWithout --yes it shows what it would do, and exits with 2.", Example: example,
		Args: cobra.ExactArgs(1), ValidArgsFunction: a.consumerNames,
	}
	var epoch int
	cmd.Flags().IntVar(&epoch, "epoch", 0, "this `epoch`; the newest unless given")
	by := a.confirmed(cmd)
	cmd.RunE = a.do(func(ctx context.Context, args []string) error {
		store, err := a.store(ctx)
		if err != nil {
			return err
		}
		f := admin.Filter{Consumer: args[0]}
		if cmd.Flags().Changed("epoch") {
			f.Epoch = &epoch
		}
		ops := admin.New(store)
		consumers, err := ops.Consumers(ctx)
		if err == nil {
			err = known(consumers, f)
		}
		if err != nil {
			return err
		}
		if f.Epoch == nil {
			epoch = newest(consumers, f.Consumer)
		}
		if missing := by.missing(); missing != "" {
			shown := a.print(map[string]any{"would": name, "consumer": f.Consumer, "epoch": epoch}, func() string {
				return oneLine(f.Consumer) + epochOf(epoch) + " would be " + name + "d\n"
			})
			a.unchanged("changed", missing)
			return errors.Join(shown, &silent{exitUsage})
		}
		operator, err := by.operator()
		if err == nil {
			err = act(ops, ctx, f.Consumer, epoch, operator)
		}
		if err != nil {
			return err
		}
		return a.print(map[string]any{"consumer": f.Consumer, "epoch": epoch, "done": name}, func() string {
			return name + "d " + oneLine(f.Consumer) + epochOf(epoch) + "\n"
		})
	})
	return cmd
}

// newest returns the greatest epoch of a consumer.
func newest(consumers []admin.KnownConsumer, name string) (epoch int) {
	for _, c := range consumers {
		if c.Name == name {
			epoch = max(epoch, c.Epoch)
		}
	}
	return epoch
}
