package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/stored"
)

func (a *app) stepsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "steps",
		Short: "Show and decide steps of which nobody knows whether they were done",
		Long: `Shows and decides steps in doubt: a process died, or got no answer, after it called an
inbox.Step and before it recorded the result, and the step has no Verify. The message fails
until an operator has asked the other side and decided.`,
		Example: "  millrace steps list\n  millrace steps decide 5f0c2c3e-7d5b-8c1a-9d41-0c8f2f6b9a10 --done --reason 'the provider has sent it' --yes",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unknown command %q for %q", args[0], cmd.CommandPath())
			}
			return cmd.Help()
		},
	}
	cmd.AddCommand(a.stepsListCommand(), a.stepsDecideCommand())
	return cmd
}

// doubtfulStep is a step in doubt, in JSON.
type doubtfulStep struct {
	ID       string  `json:"id"`
	Consumer string  `json:"consumer"`
	Epoch    int     `json:"epoch"`
	Key      string  `json:"key"`
	Name     string  `json:"step"`
	Attempts int     `json:"attempts"`
	Began    *string `json:"began_at"`
	Error    string  `json:"error"`
}

func doubtful(steps []admin.StepRecord) []doubtfulStep {
	all := []doubtfulStep{}
	for _, s := range steps {
		all = append(all, doubtfulStep{
			ID: s.ID, Consumer: s.Consumer, Epoch: s.Epoch, Key: s.MessageID, Name: s.Name, Attempts: s.Attempts,
			Began: since(s.StartedAt), Error: s.Problem,
		})
	}
	return all
}

func stepTable(steps []doubtfulStep) string {
	const widest = 80
	if len(steps) == 0 {
		return "No step is in doubt.\n"
	}
	t := newTable("ID", "CONSUMER", "KEY", "STEP", "TRIES", "BEGAN", "ERROR")
	for _, s := range steps {
		began := "-"
		if s.Began != nil {
			began = *s.Began
		}
		t.add(s.ID, s.Consumer, keyText(s.Key), short(s.Name, widest/2), s.Attempts, began, orDash(short(s.Error, widest)))
	}
	return t.String()
}

func (a *app) stepsListCommand() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List steps in doubt, the oldest first",
		Example: "  millrace steps list --json",
		Args:    cobra.NoArgs,
	}
	cmd.Flags().IntVar(&limit, "limit", 50, fmt.Sprintf("at most so many `steps`, up to %d", admin.MaxPage))
	cmd.RunE = a.doEach(func(ctx context.Context, _ []string) error {
		if limit < 1 || limit > admin.MaxPage {
			return usagef("--limit %d is not between 1 and %d", limit, admin.MaxPage)
		}
		store, err := a.store(ctx)
		if err != nil {
			return err
		}
		found, err := admin.New(store).StepsInDoubt(ctx, limit)
		if err != nil {
			return err
		}
		steps := doubtful(found)
		return a.print(map[string]any{"steps": steps}, func() string {
			text := stepTable(steps)
			if len(steps) == limit {
				text += "There may be more: give a greater --limit.\n"
			}
			return text
		})
	})
	return cmd
}

func (a *app) stepsDecideCommand() *cobra.Command {
	var done, notDone bool
	cmd := &cobra.Command{
		Use:   "decide ID",
		Short: "Say whether a step in doubt was done",
		Long: `Records whether the step in doubt with this id was done. A step that was done is not repeated,
and has no result; one that was not done is done with the next attempt at its message. First
look for the id on the other side. Without --yes it shows the step, and exits with 2.`,
		Example: "  millrace steps decide 5f0c2c3e-7d5b-8c1a-9d41-0c8f2f6b9a10 --not-done --reason 'the provider has not seen it' --yes",
		Args:    cobra.ExactArgs(1),
	}
	cmd.Flags().BoolVar(&done, "done", false, "it was done")
	cmd.Flags().BoolVar(&notDone, "not-done", false, "it was not done")
	by := a.confirmed(cmd)
	cmd.RunE = a.do(func(ctx context.Context, args []string) error {
		if done == notDone {
			return usagef("was it done? Give --done or --not-done")
		}
		id, err := hex.DecodeString(strings.ReplaceAll(args[0], "-", ""))
		if err != nil || len(id) != 16 {
			return usagef("%q is not the id of a step: millrace steps list shows them", args[0])
		}
		store, err := a.store(ctx)
		if err != nil {
			return err
		}
		decision, what := admin.StepWasNotDone, "not done"
		if done {
			decision, what = admin.StepWasDone, "done"
		}
		if missing := by.missing(); missing != "" {
			return a.proposeDecision(ctx, store, [16]byte(id), what, missing)
		}
		operator, err := by.operator()
		if err == nil {
			err = admin.New(store).DecideStep(ctx, args[0], decision, operator)
		}
		if errors.Is(err, inbox.ErrNotFound) {
			err = notDoubtful(args[0])
		}
		if err != nil {
			return err
		}
		return a.print(map[string]any{"step": args[0], "decided": what}, func() string {
			return fmt.Sprintf("step %s: %s\n", args[0], what)
		})
	})
	return cmd
}

func notDoubtful(id string) error {
	return notFoundf("there is no step in doubt with the id %q: millrace steps list shows the steps in doubt", id)
}

func (a *app) proposeDecision(ctx context.Context, store *inbox.Store, id [16]byte, what, missing string) error {
	rows, name := store.Internals().Rows(), stored.FormatID(id)
	row, err := rows.Step(ctx, rows.Reader(ctx), id[:])
	switch {
	case errors.Is(err, inbox.ErrNotFound):
		return notDoubtful(name)
	case err != nil:
		return fmt.Errorf("step %s: %w", name, database.Explain(err))
	case !row.InDoubt():
		return fmt.Errorf("step %s is %s, and only a step in doubt can be decided: %w", name, admin.StepState(row.State), inbox.ErrWrongState)
	}
	steps := doubtful([]admin.StepRecord{{
		ID: name, Consumer: string(row.Consumer), Epoch: row.Epoch, MessageID: keycode.String(row.MessageID), Name: string(row.Name),
		Attempts: row.Attempts, StartedAt: time.UnixMicro(row.StartedAt), Problem: string(row.Problem),
	}})
	shown := a.print(map[string]any{"would": what, "steps": steps}, func() string {
		return fmt.Sprintf("This step would be recorded as %s:\n\n%s", what, stepTable(steps))
	})
	a.unchanged("changed", missing)
	return errors.Join(shown, &silent{exitUsage})
}
