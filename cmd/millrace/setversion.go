package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
)

// advancing is one call that moves an aggregate on.
type advancing struct {
	*app
	cmd     *cobra.Command
	by      *operators
	epoch   int
	begin   bool   // with set-version: the aggregate is new
	missing string // with skip-gap: what may be skipped
}

const goesOn = `From then on a message with one of the versions up to there is stale: it is acked and never
handled. Held messages that the aggregate has reached are delivered. First look whether the missing
message is only parked (millrace list --status parked), and retry it if it is.

Without --yes it shows what it would do, and exits with 2.`

func (a *app) setVersionCommand() *cobra.Command {
	act := &advancing{app: a}
	cmd := act.command("set-version CONSUMER AGGREGATE VERSION", "Say that an aggregate was brought to a version by other means",
		`Records that an aggregate is at a version: a snapshot brought it there, or the messages up to there
will never come and the consumer can do without them.

`+goesOn, "  millrace set-version billing account-17 4 --reason 'restored from the snapshot' --yes\n"+
			"  millrace set-version billing account-18 0 --new --reason 'it is imported' --yes", act.setVersion)
	cmd.Args = cobra.ExactArgs(3)
	cmd.Flags().BoolVar(&act.begin, "new", false, "the consumer has seen nothing of the aggregate")
	return cmd
}

func (a *app) skipGapCommand() *cobra.Command {
	act := &advancing{app: a}
	cmd := act.command("skip-gap CONSUMER AGGREGATE", "Have an aggregate go on without the versions that are missing",
		`Has an aggregate that waits go on with its first held message, without the versions before it that are
missing. It names them, and skips them only if --missing repeats them: if they come meanwhile, or others
are missing by then, it changes nothing and exits with 5. millrace waiting lists the aggregates that wait.

`+goesOn, "  millrace skip-gap billing account-17\n"+
			"  millrace skip-gap billing account-17 --missing 4-6 --reason 'the producer skipped them' --yes", act.skipGap)
	cmd.Args = cobra.ExactArgs(2)
	cmd.Flags().StringVar(&act.missing, "missing", "", "the `versions` to skip, as it shows them without --yes")
	return cmd
}

func (act *advancing) command(use, what, long, examples string, run work) *cobra.Command {
	act.cmd = &cobra.Command{Use: use, Short: what, Long: long, Example: examples, ValidArgsFunction: act.consumerNames}
	act.cmd.Flags().IntVar(&act.epoch, "epoch", 0, "this `epoch`; the newest unless given")
	act.by = act.confirmed(act.cmd)
	act.cmd.RunE = act.do(run)
	return act.cmd
}

func (act *advancing) setVersion(ctx context.Context, args []string) error {
	version, err := strconv.ParseInt(args[2], 10, 64)
	if err != nil || version < 0 {
		return usagef("%q is not a version, which is a number from 0", args[2])
	}
	ops, of, err := act.aggregate(ctx, args)
	if err != nil {
		return err
	}
	now, err := ops.Aggregate(ctx, of)
	switch unseen := exitCode(err) == exitNotFound; {
	case unseen && !act.begin:
		return notFoundf("consumer %q%s has seen nothing of aggregate %s: millrace waiting shows how those are written that wait; "+
			"to begin a new one at version %d, add --new", of.Consumer, epochOf(of.Epoch), keyText(of.ID), version)
	case err != nil && !unseen:
		return err
	case !unseen && act.begin:
		return usagef("consumer %q%s knows aggregate %s: leave out --new", of.Consumer, epochOf(of.Epoch), keyText(of.ID))
	case now.Applied > version:
		return moved("aggregate %s is at version %d, and cannot go back to %d", keyText(of.ID), now.Applied, version)
	}
	return act.carryOut(ctx, ops, of, step{"set-version", now, version, !act.begin}, act.by.missing())
}

func (act *advancing) skipGap(ctx context.Context, args []string) error {
	ops, of, err := act.aggregate(ctx, args)
	if err != nil {
		return err
	}
	now, err := ops.Aggregate(ctx, of)
	if exitCode(err) == exitNotFound {
		err = notFoundf("consumer %q%s has seen nothing of aggregate %s: millrace waiting lists those that wait",
			of.Consumer, epochOf(of.Epoch), keyText(of.ID))
	}
	if err != nil {
		return err
	}
	s := step{skipGap, now, now.Lowest - 1, true}
	gap := s.skipped()
	switch nothing := now.Held.N == 0 || now.Lowest <= now.Applied+1; {
	case nothing && act.missing == "":
		return notFoundf("no version of aggregate %s is missing: it is at version %d, and waits for nothing", keyText(of.ID), now.Applied)
	case nothing:
		return moved("aggregate %s is at version %d now, and none is missing", keyText(of.ID), now.Applied)
	case act.missing != "" && act.missing != gap:
		return moved("aggregate %s now misses %s, not %s", keyText(of.ID), gap, act.missing)
	}
	missing := act.by.missing()
	if act.missing == "" {
		missing = strings.TrimSuffix("--missing "+gap+" "+missing, " ")
	}
	return act.carryOut(ctx, ops, of, s, missing)
}

// moved says that the aggregate is not in the state that the operator saw.
func moved(format string, args ...any) error {
	return &coded{exitWrongState, fmt.Errorf(format+": nothing was changed", args...)}
}

// aggregate returns the aggregate that the arguments name.
func (act *advancing) aggregate(ctx context.Context, args []string) (*admin.Admin, inbox.Aggregate, error) {
	of := inbox.Aggregate{Consumer: args[0], Epoch: act.epoch, ID: keyOf(args[1])}
	if of.ID == "" {
		return nil, of, usagef("which aggregate? its id is empty")
	}
	store, err := act.store(ctx)
	if err != nil {
		return nil, of, err
	}
	ops := admin.New(store)
	consumers, err := ops.Consumers(ctx)
	f := admin.Filter{Consumer: of.Consumer}
	if act.cmd.Flags().Changed("epoch") {
		f.Epoch = &act.epoch
	} else {
		of.Epoch = newest(consumers, of.Consumer)
	}
	if err == nil {
		err = known(consumers, f)
	}
	return ops, of, err
}

const skipGap = "skip-gap"

// step moves an aggregate from what it is now to a version.
type step struct {
	name  string
	now   admin.WaitingAggregate
	to    int64
	known bool
}

// carryOut takes the step, unless the call lacks a flag.
func (act *advancing) carryOut(ctx context.Context, ops *admin.Admin, of inbox.Aggregate, s step, missing string) error {
	facts := map[string]any{
		"consumer": of.Consumer, "epoch": of.Epoch, "aggregate": jsonKey(of.ID), "version": strconv.FormatInt(s.to, 10),
	}
	if missing != "" {
		facts["would"], facts["known"], facts["skipped"], facts["held"] = s.name, s.known, s.skipped(), countOf(s.now.Held)
		facts["applied_version"], facts["lowest_held_version"] = strconv.FormatInt(s.now.Applied, 10), nil
		if s.now.Held.N > 0 {
			facts["lowest_held_version"] = strconv.FormatInt(s.now.Lowest, 10)
		}
		shown := act.print(facts, func() string { return s.text(of) })
		act.unchanged("changed", missing)
		return errors.Join(shown, &silent{exitUsage})
	}
	operator, err := act.by.operator()
	switch {
	case err != nil:
	case s.name == skipGap:
		err = ops.SkipGap(ctx, of, s.now.Applied+1, s.to, operator)
	default:
		err = ops.SetVersion(ctx, of, s.to, operator)
	}
	if err != nil {
		return err
	}
	facts["done"] = s.name
	return act.print(facts, func() string {
		return fmt.Sprintf("aggregate %s of %s%s is at version %d\n", keyText(of.ID), oneLine(of.Consumer), epochOf(of.Epoch), s.to)
	})
}

// skipped returns the versions that would count as applied.
func (s step) skipped() string {
	if s.now.Applied+1 == s.to {
		return strconv.FormatInt(s.to, 10)
	}
	return fmt.Sprintf("%d-%d", s.now.Applied+1, s.to)
}

func (s step) text(of inbox.Aggregate) string {
	var b strings.Builder
	fmt.Fprintf(&b, "aggregate %s of %s%s ", keyText(of.ID), oneLine(of.Consumer), epochOf(of.Epoch))
	switch {
	case !s.known:
		fmt.Fprintf(&b, "is not known, and would begin at version %d\n", s.to)
	case s.to == s.now.Applied:
		fmt.Fprintf(&b, "is at version %d already\n", s.to)
	default:
		fmt.Fprintf(&b, "is at version %d, and would be set to %d\n", s.now.Applied, s.to)
		fmt.Fprintf(&b, "  never handled:  a message that brings version %s\n", s.skipped())
	}
	if s.now.Held.N == 0 {
		return b.String()
	}
	fmt.Fprintf(&b, "  held:           %s, the oldest since %s; the lowest version is %d\n", messagesIn(s.now.Held), stamp(s.now.Since), s.now.Lowest)
	switch {
	case s.now.Lowest <= s.to:
		b.WriteString("  then:           held messages up to that version are stale, and closed without their handler\n")
	case s.now.Lowest == s.to+1:
		fmt.Fprintf(&b, "  then:           version %d is handled\n", s.now.Lowest)
	default:
		fmt.Fprintf(&b, "  then:           it waits for version %d\n", s.to+1)
	}
	return b.String()
}
