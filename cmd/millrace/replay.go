package main

import (
	"context"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/replay"
)

const replayExamples = `  millrace replay run may --from archive --topic orders --since 2026-05-01 --until 2026-06-01 --reason … --yes
  millrace replay run rebuild --from journal --consumer projection --into projection --reason … --yes
  millrace replay run again --from rabbitmq --queue orders.dead --reason 'the handler is mended' --yes
  millrace replay run poisoned --from sql --queue poison --reason … --yes
  millrace replay list
  millrace replay resume may
  millrace replay cancel may --reason 'it is the wrong month' --yes`

func (a *app) replayCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "replay",
		Short:   "Send messages again that were sent, handled, or given up",
		Long:    "Sends messages again, with their ids, payloads and metadata, marked as replayed. What a\nconsumer has completed is a duplicate, so a projection that is built anew raises its\nEpoch first.",
		Example: replayExamples,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unknown command %q for %q", args[0], cmd.CommandPath())
			}
			return cmd.Help()
		},
	}
	cmd.AddCommand(a.replayRunCommand(), a.replayListCommand(), a.replayResumeCommand(), a.replayCancelCommand())
	return cmd
}

// replaying holds the flags of replay run.
type replaying struct {
	*app
	cmd *cobra.Command
	by  *operators

	from, into, toTopic string
	topic, consumer     string
	epoch               int
	since, until        string
	ids, sideEffects    []string
	rate                int

	queue string
	amqp  string
	idle  time.Duration
	limit int
}

func (a *app) replayRunCommand() *cobra.Command {
	r := &replaying{app: a}
	cmd := &cobra.Command{
		Use:   "run NAME",
		Short: "Send messages again, under a name by which you can resume it",
		Long: `Sends messages again. --from says from where:

  archive   what relays have sent and keep (RelayConfig.Retention)
  journal   what --consumer has handled and kept (Inbox.Journal)
  rabbitmq  the --queue of a RabbitMQ, whose URL is in MILLRACE_AMQP
  sql       the --queue of watermill-sql in the same database

It stores them in the outbox, and a relay sends them to their topics; with --into it stores
them for one consumer, and a pubsub.Durable delivers them. Its progress is stored with them:
you can stop it at any point, and millrace replay resume continues. To try parked and failed
messages again, use millrace retry.

Without --yes it shows what it would do, and exits with 2.`,
		Example: replayExamples,
		Args:    cobra.ExactArgs(1),
	}
	r.cmd = cmd
	flags := cmd.Flags()
	flags.StringVar(&r.from, "from", "", "`where` the messages are: "+strings.Join(sources, ", "))
	flags.StringVar(&r.topic, "topic", "", "of this `topic`")
	flags.StringVar(&r.consumer, "consumer", "", "with journal: what this `consumer` has handled")
	flags.IntVar(&r.epoch, "epoch", 0, "with journal: in this `epoch`; the newest that kept something unless given")
	flags.StringVar(&r.since, "since", "", "stored or handled since a `time`, such as 2026-05-01T08:00:00Z, or so long ago, such as 2h")
	flags.StringVar(&r.until, "until", "", "stored or handled before a `time`, or so long ago")
	flags.StringArrayVar(&r.ids, "id", nil, "with this `UUID`, or with journal this key; may be given again")
	flags.StringVar(&r.into, "into", "", "deliver to this `consumer` alone, in its newest epoch")
	flags.StringArrayVar(&r.sideEffects, "into-side-effects", nil, "although this `consumer` refuses replays; may be given again")
	flags.IntVar(&r.rate, "rate", 1000, "at most so many `messages` a second")
	flags.StringVar(&r.queue, "queue", "", "with rabbitmq and sql: the `queue` or topic of the dead letters")
	flags.StringVar(&r.amqp, "amqp", "", "with rabbitmq: its `URL`; MILLRACE_AMQP, which no other user of the host sees, is better")
	flags.StringVar(&r.toTopic, "to-topic", "", "with rabbitmq and sql: the `topic` of messages; where they came from unless given")
	flags.DurationVar(&r.idle, "idle", 5*time.Second, "with rabbitmq and sql: how long nothing must come for the queue to count as empty")
	flags.IntVar(&r.limit, "limit", 0, "with rabbitmq and sql: at most so many `messages`")
	r.by = a.confirmed(cmd)
	complete(cmd, "from", sources)
	a.completeConsumer(cmd)
	cmd.RunE = a.doLong(r.run)
	return cmd
}

var sources = []string{"archive", "journal", "rabbitmq", "sql"}

func (r *replaying) run(ctx context.Context, args []string) error {
	if args[0] == "" {
		return usagef("which replay? its name is empty, and replay resume needs one")
	}
	if err := r.understand(); err != nil {
		return err
	}
	if r.dead() {
		return r.runDead(ctx, args[0])
	}
	f, err := r.filter(ctx)
	if err != nil {
		return err
	}
	spec := replay.Spec{Source: r.from, Target: "outbox", Filter: f, IntoSideEffects: r.sideEffects}
	if r.into != "" {
		spec.Target, spec.Consumer = "queue", r.into
		if spec.Epoch, err = r.newest(ctx, r.into); err != nil {
			return err
		}
	}
	replayer, request, err := r.request(ctx, args[0], spec)
	if err != nil {
		return err
	}
	if known, err := replayer.Status(ctx, args[0]); err == nil { // if not, Plan says so
		if err := notOver(known); err != nil {
			return err
		}
	}
	request.PerSecond = r.rate
	request.By = admin.Operator{Name: "nobody", Reason: "a proposal"}
	plan, err := replayer.Plan(ctx, request)
	if err != nil {
		return err
	}
	if plan.LookedAt == 0 {
		return notFoundf("no message of the %s matches: relays and consumers keep what they have sent or handled only where "+
			"RelayConfig.Retention or Inbox.Journal says so", spec.Source)
	}
	if missing := r.by.missing(); missing != "" {
		return r.propose(spec, plan, missing)
	}
	if request.By, err = r.by.operator(); err != nil {
		return err
	}
	return r.carryOut(ctx, replayer, request, plan.Messages)
}

// understand refuses an ambiguous call.
func (r *replaying) understand() error {
	flags := r.cmd.Flags()
	wrong := func(only string, names ...string) error {
		for _, name := range names {
			if flags.Changed(name) {
				return usagef("--%s goes with --from %s", name, only)
			}
		}
		return nil
	}
	switch {
	case r.from == "failed" || r.from == "parked":
		return usagef("%s messages are tried again by millrace retry --all-matching, with --group and --consumer", r.from)
	case r.from == "":
		return usagef("which messages? say --from with one of %s", strings.Join(sources, ", "))
	case r.rate < 1:
		return usagef("--rate %d is less than 1", r.rate)
	case r.limit < 0:
		return usagef("--limit %d is negative", r.limit)
	case r.idle < 0:
		return usagef("--idle %v is negative", r.idle)
	case r.from == "archive":
		return firstOf(wrong("journal", "consumer", "epoch"), wrong("rabbitmq or sql", "queue", "to-topic", "idle", "limit"))
	case r.from == "journal" && r.consumer == "":
		return usagef("whose journal? add --consumer")
	case r.from == "journal":
		return wrong("rabbitmq or sql", "queue", "to-topic", "idle", "limit")
	case r.dead() && r.queue == "":
		return usagef("which dead letters? add --queue")
	case r.dead():
		return wrong("archive or journal", "topic", "consumer", "epoch", "since", "until", "id")
	}
	return usagef("--from %q is not one of %s", r.from, strings.Join(sources, ", "))
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *replaying) filter(ctx context.Context) (f replay.Filter, err error) {
	f = replay.Filter{Topic: r.topic, Consumer: r.consumer}
	for _, id := range r.ids {
		f.IDs = append(f.IDs, keyOf(id))
	}
	if r.cmd.Flags().Changed("epoch") {
		f.Epoch = &r.epoch
	}
	if f.Since, err = r.instant(ctx, "since", r.since); err != nil {
		return f, err
	}
	f.Until, err = r.instant(ctx, "until", r.until)
	return f, err
}

// newest returns the newest epoch of a consumer.
func (a *app) newest(ctx context.Context, consumer string) (epoch int, err error) {
	store, err := a.store(ctx)
	if err != nil {
		return 0, err
	}
	consumers, err := admin.New(store).Consumers(ctx)
	if err == nil {
		err = known(consumers, admin.Filter{Consumer: consumer})
	}
	for _, c := range consumers { // sorted by epoch
		if c.Name == consumer {
			epoch = c.Epoch
		}
	}
	return epoch, err
}

// request restores a replay from its stored form.
func (a *app) request(ctx context.Context, name string, spec replay.Spec) (*replay.Replayer, replay.Request, error) {
	r := replay.Request{Name: name, Filter: spec.Filter, IntoSideEffects: spec.IntoSideEffects}
	replayer, store, out, err := a.replayer(ctx)
	if err != nil {
		return nil, r, err
	}
	r.From = replay.Archive(out)
	if spec.Source == "journal" {
		r.From = replay.Journal(store)
	}
	r.To, err = a.replayTarget(ctx, store, out, spec)
	return replayer, r, err
}

// replayer returns a replayer on the database, and the store and the outbox that it uses.
func (a *app) replayer(ctx context.Context) (*replay.Replayer, *inbox.Store, *outbox.Publisher, error) {
	store, err := a.store(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	out, err := outbox.NewPublisher(a.at.db, outbox.Config{
		Dialect: a.at.dialect, Schema: a.flags.schema, TablePrefix: a.flags.prefix, OrderKey: replay.OrderKey,
	})
	if err != nil {
		return nil, nil, nil, &coded{exitUsage, err}
	}
	replayer, err := replay.New(a.at.db, store, replay.Config{
		Dialect: a.at.dialect, Schema: a.flags.schema, TablePrefix: a.flags.prefix, Namespace: a.flags.namespace,
		Logger: watermill.NopLogger{}, // the command says it all
	})
	return replayer, store, out, err
}

func (a *app) replayTarget(ctx context.Context, store *inbox.Store, out *outbox.Publisher, spec replay.Spec) (replay.Target, error) {
	if spec.Target != "queue" {
		return replay.Outbox(out), nil
	}
	consumers, err := admin.New(store).Consumers(ctx)
	if err != nil {
		return nil, err
	}
	for _, c := range consumers {
		if c.Name != spec.Consumer || c.Epoch != spec.Epoch {
			continue
		}
		key, err := inbox.Internals{}.ParseKey(c.Key)
		if err != nil {
			return nil, err
		}
		if !key.OfMessage() {
			return nil, usagef("the key of consumer %q, %s, is made by its service: send to its topic, without --into, or use package replay there",
				c.Name, c.Key)
		}
		queue, err := store.Queue(inbox.QueueConfig{
			Consumer: c.Name, Epoch: c.Epoch, Key: key,
		})
		if err != nil {
			return nil, err
		}
		return replay.Queue(queue), nil
	}
	return nil, notFoundf("there is no consumer %q with epoch %d any more", spec.Consumer, spec.Epoch)
}
