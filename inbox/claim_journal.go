package inbox

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/flight"
	"github.com/millrace-go/millrace/internal/msgcode"
)

// journals reports whether the journal keeps the message. It skips a stale message, whose handler did not run.
func (cl *claim) journals() bool { return cl.consumer.config.Journal && cl.verdict != stale }

// sealJournal returns the payload that the journal keeps of the message, if it keeps it.
func (cl *claim) sealJournal(ctx context.Context) (kept storedPayload, err error) {
	if !cl.journals() {
		return kept, nil
	}
	d := cl.delivery
	if kept, err = d.consumer.store.sealPayload(ctx, d.consumer.config.Name, d.topic, d.as.Came.Copy()); err != nil {
		return kept, fmt.Errorf("journal: %w", err)
	}
	return kept, nil
}

// journal stores a handled message whole, in the transaction of its handler.
func (cl *claim) journal(ctx context.Context, tx *sqlx.Tx, payload storedPayload) error {
	if !cl.journals() {
		return nil
	}
	d := cl.delivery
	s := d.consumer.store
	kind, version := d.consumer.config.Describe(d.msg)
	var received sql.NullInt64
	var orderKey []byte
	if cl.lease != nil {
		received, orderKey = sql.NullInt64{Int64: cl.lease.row.ReceivedAt, Valid: true}, cl.lease.row.OrderKey
	}
	_, err := tx.ExecContext(flight.With(ctx, lateJournal), s.dialect.Journal.InsertJournal, cl.id32, d.id, []byte(d.topic), orderKey,
		noteText(kind), noteText(version), []byte(d.as.Came.UUID), msgcode.AppendMetadata(nil, d.as.Came.Metadata),
		payload.inRow, d.hash, payload.form, payload.ref, received)
	if err == nil {
		err = s.checkIn(ctx, tx, payload)
	}
	if err != nil {
		err = s.refused(ctx, err, payload.texts(d.as.Came.Metadata)...)
		return fmt.Errorf("journal: keep the message, whose payload has %d bytes: %w", len(d.as.Came.Payload), err)
	}
	return nil
}
