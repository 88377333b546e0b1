package admin

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/database"
)

// Imported is a message that another system has handled, for example one in a service's own table
// of processed messages.
type Imported struct {
	// Key holds what the consumer's Key makes of the message: one part for most keys, and the parts
	// that [inbox.Key.Parts] names for a joined key. Write parts of a JSON payload as they stand in it,
	// text with its quotation marks.
	Key []string

	// ProcessedAt is when the message was handled; the retention counts from then. Defaults to the
	// time of the import.
	ProcessedAt time.Time

	// Problem says why the source could not read the key. The import refuses it and continues.
	Problem error
}

// ImportReport counts the keys by what happened to them.
type ImportReport struct {
	New      int       // stored: a delivery of the message is now a duplicate
	Known    int       // completed before, or given twice
	Open     int       // unchanged: the message is parked, failed or held, see [Admin.Find]
	Expired  int       // older than the retention, and no message waits for them: not stored, and counted as purged
	Refused  int       // not keys of this consumer
	Refusals []Refusal // the first ones
}

// Refusal is a key that was not imported.
type Refusal struct {
	Number int // in its source, from 1 on
	Key    []string
	Err    error
}

// maxRefusals is how many refusals a report holds.
const maxRefusals = 20

// Read is how many keys were read.
func (r ImportReport) Read() int { return r.New + r.Known + r.Open + r.Expired + r.Refused }

// Import records messages that another system has handled, so that a delivery of one is a duplicate
// whatever its payload is: the import does not know the payloads. config describes the consumer.
// Import registers it unless it is known; if it is known, Retention, Window and OnReplay keep their
// values where config leaves them out. Import changes neither completed nor open messages. The
// consumer remembers a key for its retention from ProcessedAt on.
//
// Import works in batches of 500, each in a transaction, and may run while the service runs. An
// error in all or the end of ctx ends it. The report counts what is committed, also with an error.
// Called again, it finds its earlier keys known; with [Pace.Mark], which counts keys here, it skips
// that many. It writes to millrace_audit when it begins, and its figures when it ends.
func (a *Admin) Import(
	ctx context.Context, config inbox.ConsumerConfig, all iter.Seq2[Imported, error], by Operator, pace Pace,
) (ImportReport, error) {
	i, err := a.importer(config)
	if err == nil {
		err = by.Validate()
	}
	if err == nil {
		err = i.record(ctx, all, by, pace)
	}
	return i.report, i.explain(err)
}

// PreviewImport counts what [Admin.Import] would do, and changes nothing. If the source has a key
// twice in different batches, it counts it as new twice.
func (a *Admin) PreviewImport(ctx context.Context, config inbox.ConsumerConfig, all iter.Seq2[Imported, error]) (ImportReport, error) {
	i, err := a.importer(config)
	if err == nil {
		err = i.preview(ctx, all)
	}
	return i.report, i.explain(err)
}

func (a *Admin) importer(config inbox.ConsumerConfig) (*importer, error) {
	i := &importer{admin: a, config: config}
	if config.Name == "" {
		return i, errors.New("the consumer needs a name")
	}
	if err := config.Validate(); err != nil {
		return i, err
	}
	i.given = config
	i.config = a.inbox.Settings(config)
	if key := i.config.Key; len(key.Parts()) == 0 {
		return i, fmt.Errorf("a key that is %s cannot be made from parts", key)
	}
	return i, nil
}

const importAction = "import"

// record imports, and writes to the audit table before and after.
func (i *importer) record(ctx context.Context, all iter.Seq2[Imported, error], by Operator, pace Pace) error {
	a := i.admin
	if _, live := a.rows.Live(ctx); live {
		return errors.New("not in a handler's transaction: it would hold every key until its end")
	}
	if err := i.find(ctx); err != nil {
		return err
	}
	id, err := a.inbox.Register(ctx, i.config)
	if err != nil {
		return err
	}
	i.id, i.write = id, i.store
	if err := i.audit(ctx, by, "begun; the key is "+a.inbox.KeySource(i.config.Key)); err != nil {
		return err
	}
	err = i.run(ctx, all, pace)
	a.inbox.Decided(by, importAction, watermill.LogFields{"consumer": i.config.Name, "epoch": i.config.Epoch, "count": i.report.New})
	ending, cancel := begun(ctx)
	defer cancel()
	r := i.report
	return errors.Join(err, i.audit(ending, by, fmt.Sprintf("ended: %d new, %d known, %d open, %d expired, %d refused",
		r.New, r.Known, r.Open, r.Expired, r.Refused)))
}

// audit writes an entry about the whole consumer.
func (i *importer) audit(ctx context.Context, by Operator, detail string) error {
	rows := i.admin.rows
	return rows.Write(ctx, func(tx *sqlx.Tx) error {
		return rows.AuditOf(ctx, tx, by, importAction, i.id, []byte{}, detail)
	})
}

// preview counts. An unknown consumer has no claims.
func (i *importer) preview(ctx context.Context, all iter.Seq2[Imported, error]) error {
	i.write = i.look
	if err := i.find(ctx); err != nil {
		return err
	}
	return i.run(ctx, all, Pace{PerSecond: math.MaxInt32})
}

// find reads the consumer's row, if there is one, and takes from it what config leaves out.
func (i *importer) find(ctx context.Context) error {
	row, err := i.admin.inbox.Find(ctx, i.config)
	if err != nil || row.ID == 0 {
		return err
	}
	i.id = row.ID
	config := &i.config
	if i.given.Retention == 0 {
		config.Retention = time.Duration(row.Retention) * time.Microsecond
		if row.Retention == 0 {
			config.Retention = inbox.Forever
		}
	}
	if i.given.Window == 0 {
		config.Window = time.Duration(row.Window) * time.Microsecond
	}
	if i.given.OnReplay == inbox.ReplayAllow {
		config.OnReplay = inbox.ReplayRule(row.OnReplay)
	}
	return nil
}

func (i *importer) explain(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("inbox: import keys of consumer %q, epoch %d, %d read: %w",
		i.config.Name, i.config.Epoch, i.report.Read(), database.Explain(err))
}
