package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
)

// importing is one call of import.
type importing struct {
	*app
	cmd       *cobra.Command
	by        *operators
	epoch     int
	key       string
	retention string
	query     string
	header    bool
	register  bool
	rate      int
}

func (a *app) importCommand() *cobra.Command {
	i := &importing{app: a}
	cmd := &cobra.Command{
		Use:   "import CONSUMER [FILE]",
		Short: "Tell a consumer which messages another system has handled",
		Long: `Reads the keys of messages that another system has handled, from a table of the service's
own for example, and records them as handled by the consumer: a delivery of such a message
is acked without running the handler, whatever its payload is. import changes neither keys
that the consumer knows nor open messages, so you can repeat a call that was cut off.

Each line of FILE, or of standard input, has the parts of a key and the time at which the
message was handled, as CSV: KEY[,TIME]. A key has one part unless the consumer joins
several; millrace check shows its key. --query reads the same columns from the database of the
DSN, in a transaction that only reads: that prevents an accident, and is no guard against a
text that ends it, with several statements. A time without a zone is UTC, a number counts seconds since
1970, and what has no time was handled now; the retention goes by it.

If the service has not run yet, register its consumer with --new, --key and --retention, as
the service sets them.

Without --yes it reads everything, counts what it would do, and exits with 2.
If a key was refused it exits with 1.`,
		Example: `  millrace import billing keys.csv
  millrace import billing --query 'SELECT message_id, processed_at FROM processed' --reason … --yes
  psql -c 'COPY … TO STDOUT CSV' | millrace import billing --new --key uuid --reason … --yes`,
		Args: cobra.RangeArgs(1, 2), ValidArgsFunction: i.complete,
	}
	i.cmd, i.by = cmd, a.confirmed(cmd)
	flags := cmd.Flags()
	flags.IntVar(&i.epoch, "epoch", 0, "this `epoch`; the newest unless given")
	flags.StringVar(&i.query, "query", "", "read what this `SELECT` returns")
	flags.BoolVar(&i.header, "header", false, "the first line names the columns")
	flags.BoolVar(&i.register, "new", false, "register a consumer that has not run yet")
	flags.StringVar(&i.key, "key", "uuid", "with --new: the consumer's `key`, as millrace check shows keys")
	flags.StringVar(&i.retention, "retention", "168h", "with --new: its `retention`, or forever")
	flags.IntVar(&i.rate, "rate", 5000, "at most so many `keys` a second")
	cmd.RunE = a.doLong(i.run)
	return cmd
}

// complete offers the consumers, then files.
func (i *importing) complete(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 1 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return i.consumerNames(cmd, args, begun)
}

func (i *importing) run(ctx context.Context, args []string) error {
	if err := i.understand(args); err != nil {
		return err
	}
	store, err := i.store(ctx)
	if err != nil {
		return err
	}
	config, err := i.consumer(ctx, store, args[0])
	if err != nil {
		return err
	}
	file := ""
	if len(args) > 1 {
		file = args[1]
	}
	all, done, err := i.source(ctx, file, len(config.Key.Parts()))
	if err != nil {
		return err
	}
	defer done()
	if missing := i.by.missing(); missing != "" {
		return i.propose(ctx, store, config, all, missing)
	}
	return i.carryOut(ctx, store, config, all)
}

// understand refuses an ambiguous call.
func (i *importing) understand(args []string) error {
	given := i.cmd.Flags().Changed
	switch {
	case i.query != "" && len(args) > 1:
		return usagef("keys come from --query or from %q: leave one out", args[1])
	case i.query != "" && i.header:
		return usagef("--header goes with lines: a query names its columns itself")
	case i.rate < 1:
		return usagef("--rate %d is less than 1", i.rate)
	case !i.register && (given("key") || given("retention")):
		return usagef("--key and --retention go with --new: a known consumer has its own")
	}
	return nil
}

// consumer returns the consumer that gets the keys, from the tables or the flags.
func (i *importing) consumer(ctx context.Context, store *inbox.Store, name string) (config inbox.ConsumerConfig, err error) {
	consumers, err := admin.New(store).Consumers(ctx)
	if err != nil {
		return config, err
	}
	f := admin.Filter{Consumer: name}
	if i.cmd.Flags().Changed("epoch") {
		f.Epoch = &i.epoch
	} else {
		i.epoch = newest(consumers, name)
	}
	unknown := known(consumers, f)
	switch {
	case unknown != nil && !i.register:
		return config, errors.Join(unknown, notFoundf("If its service has not run yet, add --new, and --key and --retention as the service has them"))
	case unknown == nil && i.register:
		return config, usagef("consumer %q%s is known: leave out --new, and its key and retention are taken", name, epochOf(i.epoch))
	}
	for _, c := range consumers {
		if c.Name == name && c.Epoch == i.epoch {
			config.Key, err = inbox.Internals{}.ParseKey(c.Key)
			config.Retention, config.Window = c.Retention, c.Window
		}
	}
	config.Name, config.Epoch = name, i.epoch
	if unknown == nil || err != nil {
		return config, err
	}
	config.Key, err = inbox.Internals{}.ParseKey(i.key)
	if err != nil {
		return config, &coded{exitUsage, err}
	}
	config.Retention = inbox.Forever
	if i.retention != "forever" {
		if config.Retention, err = time.ParseDuration(i.retention); err != nil {
			return config, usagef("--retention %q is neither a duration, such as 168h, nor forever", i.retention)
		}
	}
	if err := config.Validate(); err != nil {
		return config, &coded{exitUsage, err}
	}
	return config, nil
}

func (i *importing) propose(
	ctx context.Context, store *inbox.Store, config inbox.ConsumerConfig, all iter.Seq2[admin.Imported, error], missing string,
) error {
	report, err := admin.New(store).PreviewImport(ctx, config, all)
	if shown := i.show(config, report, "would"); shown != nil || err != nil {
		return errors.Join(err, shown)
	}
	i.unchanged("changed", missing)
	return &silent{exitUsage}
}

func (i *importing) carryOut(
	ctx context.Context, store *inbox.Store, config inbox.ConsumerConfig, all iter.Seq2[admin.Imported, error],
) error {
	operator, err := i.by.operator()
	if err != nil {
		return err
	}
	bar := i.progress("import", admin.Count{})
	report, err := admin.New(store).Import(ctx, config, all, operator, admin.Pace{PerSecond: i.rate, Progress: bar.at})
	bar.end()
	err = errors.Join(err, i.show(config, report, "done"))
	if err == nil && report.Refused > 0 {
		err = &silent{exitFailed}
	}
	return err
}

// show prints what happened, or would happen, to the keys.
func (i *importing) show(config inbox.ConsumerConfig, r admin.ImportReport, how string) error {
	refusals := []map[string]any{}
	for _, refused := range r.Refusals {
		refusals = append(refusals, map[string]any{"number": refused.Number, "key": refused.Key, "error": refused.Err.Error()})
	}
	figures := map[string]any{
		how: "import", "consumer": config.Name, "epoch": config.Epoch, "key": config.Key.String(), "read": r.Read(), "new": r.New,
		"known": r.Known, "open": r.Open, "expired": r.Expired, "refused": r.Refused, "refusals": refusals,
	}
	return i.print(figures, func() string { return importText(config, r, how == "would") })
}

func importText(config inbox.ConsumerConfig, r admin.ImportReport, would bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, epoch %d; its key is %s\n\n", oneLine(config.Name), config.Epoch, oneLine(config.Key.String()))
	stored := "stored: a delivery of the message is acked without its handler"
	if would {
		stored = "would be stored"
	}
	t := newTable("KEYS", "WHAT BECOMES OF THEM")
	for _, row := range []struct {
		n    int
		what string
	}{
		{r.New, stored},
		{r.Known, "known already"},
		{r.Open, "left alone, since the message is parked, failed or held: see millrace list"},
		{r.Expired, "not stored, since the message was handled longer ago than the retention"},
		{r.Refused, "refused"},
	} {
		if row.n > 0 {
			t.add(row.n, row.what)
		}
	}
	if r.Read() == 0 {
		b.WriteString("Nothing was read.\n")
		return b.String()
	}
	b.WriteString(t.String())
	if r.Refused > 0 {
		t := newTable("ENTRY", "KEY", "WHY")
		for _, refused := range r.Refusals {
			t.add(refused.Number, short(strings.Join(refused.Key, ","), 40), refused.Err)
		}
		b.WriteString("\n" + t.String())
		if more := r.Refused - len(r.Refusals); more > 0 {
			fmt.Fprintf(&b, "… and %d more\n", more)
		}
	}
	return b.String()
}
