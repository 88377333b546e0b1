package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/ambient"
	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/stored"
)

// An UnsettledOutcome is what a handler produced in a committed run and the broker may lack.
type UnsettledOutcome struct {
	Consumer  string
	Epoch     int
	MessageID string
	Topic     string
	Messages  []*message.Message
	StoredAt  time.Time
	Age       time.Duration

	consumer int32
	id       []byte
}

// Unsettled lists the oldest outcomes of the consumers that f matches, stored longer than age ago, at
// most limit of them, which all stay in memory. It leaves out those that it cannot read, and names them in
// the error. [Admin.Redispatch] publishes one, [inbox.Store.Redispatch] all.
func (a *Admin) Unsettled(ctx context.Context, f ConsumerFilter, age time.Duration, limit int) ([]UnsettledOutcome, error) {
	var found []UnsettledOutcome
	err := a.inbox.EachUnsettled(ctx, f.unsettled(age), limit, func(o stored.Unsettled) (stays bool, err error) {
		found = append(found, unsettledOutcome(o))
		return true, nil
	})
	return found, err
}

func (f ConsumerFilter) unsettled(age time.Duration) stored.UnsettledFilter {
	return stored.UnsettledFilter{Consumer: f.Consumer, Epoch: f.Epoch, Age: age}
}

func unsettledOutcome(o stored.Unsettled) UnsettledOutcome {
	return UnsettledOutcome{
		Consumer: o.Consumer, Epoch: o.Epoch, MessageID: o.MessageID, Topic: o.Topic, Messages: o.Messages,
		StoredAt: o.StoredAt, Age: o.Age, consumer: o.ConsumerID, id: o.ID,
	}
}

// Outcome returns what the handler of a consumer and epoch produced for the message with this key, if the broker may
// lack it. It returns [inbox.ErrNotFound] if there is no such outcome, or it is settled.
func (a *Admin) Outcome(ctx context.Context, consumer string, epoch int, messageID string) (UnsettledOutcome, error) {
	of, err := a.rows.Consumer(ctx, consumer, epoch)
	var found UnsettledOutcome
	if err == nil {
		found, err = a.outcomeOf(ctx, of, messageID)
	}
	if err != nil {
		return found, fmt.Errorf("inbox: outcome of consumer %q, message %q: %w", consumer, messageID, database.Explain(err))
	}
	return found, nil
}

func (a *Admin) outcomeOf(ctx context.Context, of stored.Consumer, messageID string) (found UnsettledOutcome, err error) {
	now, err := a.rows.Now(ctx)
	if err != nil {
		return found, err
	}
	c, err := a.claimOf(ctx, a.rows.Reader(ctx), of, messageID, func(c stored.Claim) bool { return c.Outcome != nil })
	if err != nil {
		return found, err
	}
	at := time.UnixMicro(c.OutcomeAt.Int64).UTC()
	found = UnsettledOutcome{
		Consumer: string(c.Name), Epoch: c.Epoch, MessageID: keycode.String(c.ID), Topic: string(c.Topic),
		StoredAt: at, Age: now.Sub(at), consumer: of.ID, id: c.ID,
	}
	found.Messages, err = a.inbox.Publishable(ctx, found.Consumer, found.Topic, c.Outcome)
	return found, err
}

// Redispatch publishes an outcome of [Admin.Unsettled] or [Admin.Outcome], with the same UUIDs, bytes and
// metadata, and settles it. An outbox.Publisher on the same database stores the messages in the
// transaction that settles the outcome, so the outcome is sent once, whoever else calls Redispatch. Any
// other publisher is called before the commit, and may be called again. The broker may get the outcome twice if the
// source delivers the message again at the same time. Redispatch returns [inbox.ErrNotFound] if the outcome was settled before.
func (a *Admin) Redispatch(ctx context.Context, o UnsettledOutcome, by Operator, to message.Publisher) error {
	if err := by.Validate(); err != nil {
		return err
	}
	err := a.redispatch(ctx, o, to, func(tx *sqlx.Tx) error {
		return a.rows.AuditOf(ctx, tx, by, redispatchAction, o.consumer, o.id, o.detail())
	})
	if err != nil {
		return err
	}
	a.inbox.Decided(by, redispatchAction, watermill.LogFields{
		"consumer": o.Consumer, "epoch": o.Epoch, "message_id": o.MessageID, "topic": o.Topic, "count": len(o.Messages),
	})
	return nil
}

// RedispatchAll does what [Admin.Redispatch] does for one for the outcomes that [Admin.Unsettled] lists.
// One that cannot be published stops no other: RedispatchAll returns the errors of all. It skips those
// that were settled meanwhile, and ignores Pace.Mark, because an outcome that is published is gone. It
// returns how many outcomes and how many messages of theirs it published, also with an error or at the
// end of ctx. The audit has one entry of it for each consumer, see [Admin.AuditMessages].
func (a *Admin) RedispatchAll(
	ctx context.Context, f ConsumerFilter, age time.Duration, limit int, by Operator, to message.Publisher, pace Pace,
) (outcomes, messages int, err error) {
	if err := cmp.Or(by.Validate(), a.mayDoMany(ctx, &pace)); err != nil {
		return 0, 0, err
	}
	bulk := pace.bulk(by, redispatchAction, f.outcomes(age))
	began := time.Now()
	var failures []error
	err = a.inbox.EachUnsettled(ctx, f.unsettled(age), limit, func(kept stored.Unsettled) (stays bool, err error) {
		if err := pace.wait(ctx, began, outcomes); err != nil {
			return true, err
		}
		o := unsettledOutcome(kept)
		err = a.redispatch(ctx, o, to, func(tx *sqlx.Tx) error {
			return bulk.Audit(ctx, tx, a.rows.Dialect, stored.Changed{Consumer: o.consumer, MessageID: o.id, Detail: o.detail()})
		})
		switch {
		case errors.Is(err, inbox.ErrNotFound):
			return false, nil
		case err != nil && (ctx.Err() != nil || errors.Is(err, inbox.ErrUnavailable)):
			return true, err
		case err != nil:
			failures = append(failures, err)
			return true, nil
		}
		outcomes, messages = outcomes+1, messages+len(o.Messages)
		if pace.Progress != nil {
			pace.Progress(outcomes)
		}
		return false, nil
	})
	if outcomes > 0 {
		a.inbox.Decided(by, redispatchAction, watermill.LogFields{"count": messages})
	}
	return outcomes, messages, errors.Join(append(failures, err)...)
}

// outcomes says in words which outcomes f selects.
func (f ConsumerFilter) outcomes(age time.Duration) string {
	text := "outcomes"
	if f.Consumer != "" {
		text += fmt.Sprintf(", of consumer %q", f.Consumer)
	}
	if f.Epoch != nil {
		text += fmt.Sprintf(", of epoch %d", *f.Epoch)
	}
	return text + fmt.Sprintf(", stored longer than %v ago", age)
}

// redispatchAction is the action's name in the audit table.
const redispatchAction = "redispatch"

func (o *UnsettledOutcome) detail() string {
	return fmt.Sprintf("%d messages to topic %q", len(o.Messages), o.Topic)
}

// redispatch publishes and settles an outcome in a transaction that audit records.
func (a *Admin) redispatch(ctx context.Context, o UnsettledOutcome, to message.Publisher, audit func(*sqlx.Tx) error) error {
	var own *ambient.Tx
	err := a.rows.Write(ctx, func(tx *sqlx.Tx) error {
		fresh, err := a.inbox.DeleteOutcome(ctx, tx, o.consumer, o.id)
		switch {
		case err != nil:
			return err
		case !fresh:
			return fmt.Errorf("it was settled before: %w", inbox.ErrNotFound)
		}
		if err := audit(tx); err != nil || len(o.Messages) == 0 {
			return err // erased payloads leave no message
		}
		own = ambient.New(tx, a.rows.DB.DB)
		defer own.End()
		own.Cause = cause(ambient.Cause(o.Consumer, o.MessageID))
		for _, m := range o.Messages {
			m.SetContext(ambient.With(ctx, own))
		}
		return to.Publish(o.Topic, o.Messages...)
	})
	if err != nil {
		return fmt.Errorf("inbox: redispatch consumer %q, message %q to %q: %w", o.Consumer, o.MessageID, o.Topic, database.Explain(err))
	}
	if own != nil {
		own.Committed()
	}
	return nil
}

// cause names the message whose handler produced an outcome.
type cause string

func (c cause) String() string { return string(c) }
