package inbox

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/ambient"
	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/flight"
)

// What writeRows writes may be sent with COMMIT.
var (
	lateHeld    = &flight.Late{What: flight.Named("check that the transaction still holds the claim")}
	lateResult  = &flight.Late{What: flight.Named("store the result")}
	lateOutcome = &flight.Late{What: flight.Named("store the outcome")}
	lateJournal = &flight.Late{What: flight.Named("journal")}
	lateOpenRow = &flight.Late{What: flight.Named("close the open message"), Rows: 1}
)

// sealedRows is what the codec made of what belongs to a claim.
type sealedRows struct {
	result, outcome []byte
	journal         storedPayload
	members         []sealedRows // of a batch
}

// sealAndWrite writes what belongs to the claim, in its transaction, if that still holds the claim after the codec was
// called.
func (cl *claim) sealAndWrite(ctx context.Context, produced []*message.Message, late *flight.Late) error {
	var rows sealedRows
	err := cl.verifyAfter(late, func() (err error) { //nolint:contextcheck // the claim has a span of its own
		rows, err = cl.sealRows(ctx, produced)
		return err
	})
	if err != nil {
		return err
	}
	return cl.writeRows(ctx, cl.tx.Tx, rows, produced)
}

// sealRows has the codec seal the result, what the handler produced, and what the journal keeps. ctx carries the
// transaction.
func (cl *claim) sealRows(ctx context.Context, produced []*message.Message) (rows sealedRows, err error) {
	if cl.batch != nil {
		return cl.batch.sealRows(ctx, produced)
	}
	if rows.result, err = cl.sealResult(ctx); err != nil {
		return rows, err
	}
	if rows.outcome, err = cl.sealOutcome(ctx, produced); err != nil {
		return rows, err
	}
	rows.journal, err = cl.sealJournal(ctx)
	return rows, err
}

// writeRows writes what belongs to the claim: the result, the messages that the handler produced, the
// journal, the released messages, and last the open row, which it closes.
func (cl *claim) writeRows(ctx context.Context, tx *sqlx.Tx, rows sealedRows, produced []*message.Message) error {
	if cl.batch != nil {
		return cl.batch.writeRows(ctx, tx, rows, produced)
	}
	if err := cl.storeResult(ctx, tx, rows.result); err != nil {
		return err
	}
	if len(produced) > 0 {
		if err := cl.storeProduced(ctx, tx, rows.outcome, produced); err != nil {
			return err
		}
	}
	if err := cl.journal(ctx, tx, rows.journal); err != nil {
		return err
	}
	if err := cl.release(ctx, tx); err != nil {
		return err
	}
	if cl.openRow {
		return cl.closeOpenRow(ctx, tx, produced)
	}
	return nil
}

// sealResult returns what to store of what the handler found out, nil if that is nothing.
func (cl *claim) sealResult(ctx context.Context) ([]byte, error) {
	body := cl.ambient.Result()
	if body == nil {
		return nil, nil
	}
	kept, err := cl.consumer.store.sealResult(ctx, cl.consumer.config.Name, cl.msg, body)
	if err != nil {
		return nil, fmt.Errorf("store the result: %w", err)
	}
	return kept, nil
}

func (cl *claim) storeResult(ctx context.Context, tx *sqlx.Tx, kept []byte) error {
	if kept == nil {
		return nil
	}
	s := cl.consumer.store
	_, err := tx.ExecContext(flight.With(ctx, lateResult), s.dialect.PutResult, cl.id32, cl.id, kept)
	if err = s.refused(ctx, err, kept); err != nil {
		return fmt.Errorf("store the result: %w", err)
	}
	return nil
}

// sealOutcome returns what to store of what the handler produced, unless it goes to the outbox.
func (cl *claim) sealOutcome(ctx context.Context, produced []*message.Message) ([]byte, error) {
	config := &cl.consumer.config
	if len(produced) == 0 || config.Outbox != nil {
		return nil, nil
	}
	topic := message.PublishTopicFromCtx(cl.ctx) //nolint:contextcheck // the router put it there
	outcome, err := cl.consumer.store.encodeOutcome(ctx, config.Name, topic, produced)
	if err != nil {
		return nil, fmt.Errorf("store the outcome: %w", err)
	}
	return outcome, nil
}

// storeProduced stores what the handler produced, in the outbox or as the outcome of the message.
func (cl *claim) storeProduced(ctx context.Context, tx *sqlx.Tx, outcome []byte, produced []*message.Message) error {
	topic := message.PublishTopicFromCtx(cl.ctx) //nolint:contextcheck // the router put it there
	if cl.consumer.config.Outbox != nil {
		return cl.publish(ctx, topic, produced)
	}
	s := cl.consumer.store
	_, err := tx.ExecContext(flight.With(ctx, lateOutcome), s.dialect.InsertOutcome, cl.id32, cl.id, []byte(topic), outcome)
	if err = s.refused(ctx, err, outcome); err != nil {
		return fmt.Errorf("store the outcome: %w", err)
	}
	return nil
}

// publish stores what the handler produced in the outbox. ctx carries the transaction.
func (cl *claim) publish(ctx context.Context, topic string, produced []*message.Message) error {
	for _, m := range produced {
		m.SetContext(ctx)
	}
	takes := ambient.From(ctx).Takes()
	if err := cl.consumer.config.Outbox.Publish(topic, produced...); err != nil {
		return fmt.Errorf("publish to the outbox: %w", err)
	}
	if ambient.From(ctx).Takes() == takes {
		cl.warnNoOutbox()
	}
	return nil
}

// moveOutcome moves the outcome of an earlier run to the outbox, unless somebody else has settled it. The caller has a
// slot, which it leaves before it calls moved.
func (cl *claim) moveOutcome(ctx context.Context, topic string) error {
	s, moved := cl.consumer.store, func() {}
	err := s.db.WriteInTurn(ctx, func(tx *sqlx.Tx) error {
		fresh, err := s.Internals().DeleteOutcome(ctx, tx, cl.id32, cl.id)
		if err != nil || !fresh || len(cl.outcome) == 0 {
			return err
		}
		own := ambient.New(tx, s.db.DB)
		defer own.End()
		own.Cause, moved = (*cause)(cl.delivery), own.Committed
		return cl.publish(ambient.With(ctx, own), topic, cl.outcome)
	})
	if err != nil {
		return fmt.Errorf("move the stored outcome to the outbox: %w", err)
	}
	cl.outcome, cl.moved = nil, moved
	return nil
}

// closeOpenRow deletes the open row, or leaves it to the queue until the produced messages are
// published. It returns ErrLost if the row was changed meanwhile.
func (cl *claim) closeOpenRow(ctx context.Context, tx *sqlx.Tx, produced []*message.Message) (err error) {
	s := cl.consumer.store
	ctx = flight.With(ctx, lateOpenRow)
	var closed int64
	switch {
	case cl.queuePublishes(produced):
		closed, err = database.Affected(tx.ExecContext(ctx, s.dialect.Queue.SettleLeased,
			[]byte(unpublished), cl.id32, cl.id, cl.lease.token))
	case cl.lease != nil:
		closed, err = database.Affected(tx.ExecContext(ctx, s.dialect.Queue.CloseLeased, cl.id32, cl.id, cl.lease.token))
	default:
		closed, err = database.Affected(tx.ExecContext(ctx, s.dialect.DeleteMessage, cl.id32, cl.id, cl.openAs))
	}
	if err != nil {
		return fmt.Errorf("close the open message: %w", err)
	}
	if closed != 1 {
		return ErrLost
	}
	return nil
}

// queuePublishes reports whether the queue must ensure that what the handler produced is published.
func (cl *claim) queuePublishes(produced []*message.Message) bool {
	return cl.lease != nil && len(produced) > 0 && cl.consumer.config.Outbox == nil
}
