package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/replay"
)

// propose shows what the replay would send, and what the call still needs.
func (r *replaying) propose(spec replay.Spec, plan replay.Plan, missing string) error {
	shown := r.print(proposedReplay(spec, plan), func() string { return proposedText(spec, plan) })
	if shown != nil {
		return shown
	}
	if len(plan.SideEffects) > 0 {
		r.notef("It would be refused: replays are refused by %s, which would get what it has not completed.\n", oneLine(strings.Join(plan.SideEffects, ", ")))
		for _, consumer := range slices.Backward(plan.SideEffects) {
			missing = "--into-side-effects " + word(consumer) + " " + missing
		}
	}
	r.unchanged("changed", missing)
	return &silent{exitUsage}
}

func proposedReplay(spec replay.Spec, plan replay.Plan) map[string]any {
	topics, consumers := []map[string]any{}, []map[string]any{}
	for _, t := range plan.Topics {
		topics = append(topics, map[string]any{"topic": t.Topic, "messages": t.Messages, "first": stamp(t.First), "last": stamp(t.Last)})
	}
	for _, c := range plan.Consumers {
		consumers = append(consumers, map[string]any{
			"consumer": c.Name, "epoch": c.Epoch, "replays": c.OnReplay.String(), "completed": c.Completed, "stored": c.Open,
			"new": c.New, "in_older_epochs": c.Before, "served": c.Served,
		})
	}
	return map[string]any{
		"would": "replay", "from": spec.Source, "to": spec.Target, "into": spec.Consumer, "messages": plan.Messages,
		"looked_at": plan.LookedAt, "topics": topics, "consumers": consumers, "not_known_to_listen": append([]string{}, plan.Silent...),
		"side_effects": append([]string{}, plan.SideEffects...),
	}
}

func proposedText(spec replay.Spec, plan replay.Plan) string {
	var b strings.Builder
	to := "the outbox"
	if spec.Target == "queue" {
		to = fmt.Sprintf("what is stored for %s%s", oneLine(spec.Consumer), epochOf(spec.Epoch))
	}
	fmt.Fprintf(&b, "%s would go from the %s to %s:\n\n", messagesIn(admin.Count{N: plan.Messages}), spec.Source, to)
	t := newTable("TOPIC", "MESSAGES", "FIRST", "LAST")
	for _, c := range plan.Topics {
		t.add(c.Topic, c.Messages, stamp(c.First), stamp(c.Last))
	}
	b.WriteString(t.String())
	if plan.LookedAt != plan.Messages {
		fmt.Fprintf(&b, "\nOf these, %d were read:\n", plan.LookedAt)
	}
	b.WriteString("\n" + consumersText(plan))
	return b.String()
}

func consumersText(plan replay.Plan) string {
	var b strings.Builder
	t := newTable("CONSUMER", "EPOCH", "REPLAYS", "COMPLETED", "STORED", "NEW")
	for _, c := range plan.Consumers {
		t.add(c.Name, c.Epoch, c.OnReplay, c.Completed, c.Open, c.New)
	}
	if len(plan.Consumers) > 0 {
		b.WriteString(t.String())
	}
	for _, c := range plan.Consumers {
		if c.Completed > 0 {
			fmt.Fprintf(&b, "%s: %d already completed in epoch %d, which are acked as duplicates; raise Epoch to rebuild.\n",
				oneLine(c.Name), c.Completed, c.Epoch)
		}
		if c.New > 0 && c.OnReplay == inbox.ReplayRefuse {
			fmt.Fprintf(&b, "%s: %d not completed, which it would park, or handle where they are stored for it alone.\n", oneLine(c.Name), c.New)
		}
	}
	if len(plan.Silent) > 0 {
		fmt.Fprintf(&b, "None of them came to %s: nobody can tell whether they would.\n", oneLine(strings.Join(plan.Silent, ", ")))
	}
	return b.String()
}

// carryOut sends the messages and shows a bar.
func (a *app) carryOut(ctx context.Context, replayer *replay.Replayer, request replay.Request, total int) error {
	bar := a.progress("replay", admin.Count{N: total})
	request.Progress = func(s replay.Status) { bar.at(s.Sent) }
	status, err := replayer.Run(ctx, request)
	bar.end()
	return a.ended(status, err, "")
}

// ended says how far a replay came, and why it is done.
func (a *app) ended(status replay.Status, err error, why string) error {
	if status.Name == "" {
		return err
	}
	shown := a.print(replayOf(status), func() string {
		text := fmt.Sprintf("%s sent again", messagesIn(admin.Count{N: status.Sent}))
		if status.Skipped > 0 {
			text += fmt.Sprintf(", %d left out, since their payloads are gone", status.Skipped)
		}
		switch {
		case status.State == replay.Done:
			text += why
		case status.State != replay.Running:
		case ofDeadLetters(status):
			text += "; the same run command goes on"
		default:
			text += fmt.Sprintf("; millrace replay resume %s goes on", word(status.Name))
		}
		return text + "\n"
	})
	return errors.Join(err, shown)
}

func replayOf(s replay.Status) map[string]any {
	m := map[string]any{
		"name": s.Name, "state": s.State, "asked_for": s.Spec, "sent": s.Sent, "skipped": s.Skipped, "by": s.By.Name, "reason": s.By.Reason,
		"started": stamp(s.StartedAt), "moved": stamp(s.MovedAt),
	}
	if !s.FinishedAt.IsZero() {
		m["finished"] = stamp(s.FinishedAt)
	}
	return m
}

func (a *app) replayListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Short: "Replays, and how far each is", Args: cobra.NoArgs,
		Long: "Lists replays, the last that was begun first. One that is running may have been interrupted:\nresume goes on with it.",
	}
	limit := cmd.Flags().Int("limit", 20, "at most so many `replays`")
	cmd.RunE = a.doEach(func(ctx context.Context, _ []string) error {
		if *limit < 1 {
			return usagef("--limit %d is less than 1", *limit)
		}
		replayer, _, _, err := a.replayer(ctx)
		if err != nil {
			return err
		}
		all, err := replayer.List(ctx, *limit)
		if err != nil {
			return err
		}
		list := []map[string]any{}
		t := newTable("NAME", "STATE", "FROM", "TO", "SENT", "LEFT OUT", "MOVED", "BY", "REASON")
		for _, s := range all {
			to := s.Spec.Target
			if s.Spec.Consumer != "" {
				to = s.Spec.Consumer
			}
			list = append(list, replayOf(s))
			t.add(s.Name, s.State, s.Spec.Source, to, s.Sent, s.Skipped, stamp(s.MovedAt), s.By.Name, s.By.Reason)
		}
		return a.print(map[string]any{"replays": list}, func() string {
			if len(all) == 0 {
				return "Nothing was replayed.\n"
			}
			return t.String()
		})
	})
	return cmd
}

func (a *app) replayResumeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "resume NAME", Short: "Go on with a replay that was interrupted", Args: cobra.ExactArgs(1),
		Long: "Goes on with a replay where it was, as it was asked for. One that empties a dead-letter queue\nis gone on with by the same run command.",
	}
	rate := cmd.Flags().Int("rate", 1000, "at most so many `messages` a second")
	cmd.RunE = a.doLong(func(ctx context.Context, args []string) error {
		if *rate < 1 {
			return usagef("--rate %d is less than 1", *rate)
		}
		replayer, _, _, err := a.replayer(ctx)
		if err != nil {
			return err
		}
		status, err := replayer.Status(ctx, args[0])
		if errors.Is(err, replay.ErrNotFound) {
			return notFoundf("there is no replay %q: millrace replay list shows those there are", args[0])
		}
		if err == nil {
			err = notCancelled(status)
		}
		if err != nil {
			return err
		}
		if ofDeadLetters(status) {
			return usagef("replay %q empties dead letters: go on with it by the same run command", args[0])
		}
		if status.State == replay.Done {
			return a.print(replayOf(status), func() string {
				return fmt.Sprintf("Replay %q was done at %s: nothing was sent.\n", args[0], stamp(status.FinishedAt))
			})
		}
		_, request, err := a.request(ctx, args[0], status.Spec)
		if err != nil {
			return err
		}
		request.PerSecond, request.By = *rate, status.By
		return a.carryOut(ctx, replayer, request, 0)
	})
	return cmd
}

// ofDeadLetters reports whether a replay empties a queue that only the command which began it knows.
func ofDeadLetters(s replay.Status) bool {
	return s.Spec.Source != "archive" && s.Spec.Source != "journal"
}

// notOver refuses to go on with a replay that has ended: what its source has now came after that, or was overlooked.
func notOver(s replay.Status) error {
	if s.State == replay.Done {
		return moved("replay %q was done at %s, with %s sent again: take another name for what is there now",
			s.Name, stamp(s.FinishedAt), messagesIn(admin.Count{N: s.Sent}))
	}
	return notCancelled(s)
}

// notCancelled refuses to go on with a replay that was cancelled.
func notCancelled(s replay.Status) error {
	if s.State == replay.Cancelled {
		return moved("replay %q was cancelled: start a new one under another name", s.Name)
	}
	return nil
}

func (a *app) replayCancelCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "cancel NAME", Short: "End a replay for good", Args: cobra.ExactArgs(1),
		Long: "Ends a replay for good: whoever sends it stops after its batch, and what was sent stays sent.",
	}
	by := a.confirmed(cmd)
	cmd.RunE = a.do(func(ctx context.Context, args []string) error {
		replayer, _, _, err := a.replayer(ctx)
		if err != nil {
			return err
		}
		status, err := replayer.Status(ctx, args[0])
		if errors.Is(err, replay.ErrNotFound) {
			return notFoundf("there is no replay %q: millrace replay list shows those there are", args[0])
		}
		if err != nil {
			return err
		}
		if status.State != replay.Running {
			return moved("replay %q is %s already", args[0], status.State)
		}
		if missing := by.missing(); missing != "" {
			shown := a.print(map[string]any{"would": "cancel", "name": args[0], "sent": status.Sent}, func() string {
				return fmt.Sprintf("Replay %q would be ended, with %d sent.\n", args[0], status.Sent)
			})
			a.unchanged("changed", missing)
			return errors.Join(shown, &silent{exitUsage})
		}
		operator, err := by.operator()
		if err != nil {
			return err
		}
		if err := replayer.Cancel(ctx, args[0], operator); err != nil {
			return err
		}
		return a.print(map[string]any{"name": args[0], "done": "cancel"}, func() string {
			return fmt.Sprintf("Replay %q is ended.\n", args[0])
		})
	})
	return cmd
}
