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

// Imported is a message that another system has handled, such as a table of processed
// messages that a service kept by itself.
type Imported struct {
	// Key is what the consumer's Key makes of the message: one part for most keys, and those
	// that [Key.Parts] names where it is joined of several. Parts of a JSON payload are written
	// as they stand in it, text with its quotation marks.
	Key []string

	// ProcessedAt is when it was handled, by which the retention goes. Defaults to the time of
	// the import.
	ProcessedAt time.Time

	// Problem is why its source could not read it. It is then refused, and others go on.
	Problem error
}

// ImportReport counts what became of the keys that were read.
type ImportReport struct {
	New      int       // stored: a delivery of the message is a duplicate now
	Known    int       // there before: completed, or given twice
	Open     int       // left as they are: the message is parked, failed or held, see [Admin.Find]
	Expired  int       // older than the retention: not stored, and counted as purged
	Refused  int       // no keys of this consumer
	Refusals []Refusal // the first of them
}

// Refusal is a key that was not imported.
type Refusal struct {
	Number int // in its source, which begins with 1
	Key    []string
	Err    error
}

// maxRefusals is how many refusals a report has.
const maxRefusals = 20

// Read is how many keys were read.
func (r ImportReport) Read() int { return r.New + r.Known + r.Open + r.Expired + r.Refused }

// Import records messages that another system has handled, so that a delivery of one is a
// duplicate whatever its payload is: that of the one that was handled is not known. config
// is that of the consumer, which is registered unless it is known; if it is, Retention, Window
// and OnReplay stay as they are where config leaves them out. What the consumer has
// completed stays as it is, and so does what is open. A key is remembered for the retention
// from its ProcessedAt on.
//
// It works in batches of 500, each in a transaction, and may run while the service does.
// An error of all ends it, and so does the end of ctx. The report counts what is committed,
// also with an error. Called again it goes on, and finds what it did before to be known; with
// [Pace.Mark], which counts keys here, it passes over as many. It is written into
// millrace_audit when it begins, and with its figures when it ends.
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

// PreviewImport counts what [Admin.Import] would do, and changes nothing. A key that its
// source has twice in different batches is counted as new twice.
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
		return i, fmt.Errorf("a key that is %s cannot be told from its parts", key)
	}
	return i, nil
}

const importAction = "import"

// record imports, and leaves in the audit table what it was about to do and what it did.
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

// audit says what is done to the whole consumer.
func (i *importer) audit(ctx context.Context, by Operator, detail string) error {
	rows := i.admin.rows
	return rows.Write(ctx, func(tx *sqlx.Tx) error {
		return rows.AuditOf(ctx, tx, by, importAction, i.id, []byte{}, detail)
	})
}

// preview counts. A consumer that is not known has claimed nothing.
func (i *importer) preview(ctx context.Context, all iter.Seq2[Imported, error]) error {
	i.write = i.look
	if err := i.find(ctx); err != nil {
		return err
	}
	return i.run(ctx, all, Pace{PerSecond: math.MaxInt32})
}

// find looks whether the consumer is known, and takes from its row what was not given.
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
