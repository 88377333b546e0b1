package inbox

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/flight"
	"github.com/millrace-go/millrace/internal/msgcode"
)

// journal stores a handled message whole, in the transaction of its handler. It skips a stale
// message, whose handler did not run.
func (cl *claim) journal(ctx context.Context, tx *sqlx.Tx) error {
	d := cl.delivery
	if !d.consumer.config.Journal || cl.verdict == stale {
		return nil
	}
	s := d.consumer.store
	kind, version := d.consumer.config.Describe(d.msg)
	payload, err := s.sealPayloadIn(ctx, tx, d.consumer.config.Name, d.topic, d.as.Came.Copy())
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	var received sql.NullInt64
	var orderKey []byte
	if cl.lease != nil {
		received, orderKey = sql.NullInt64{Int64: cl.lease.row.ReceivedAt, Valid: true}, cl.lease.row.OrderKey
	}
	_, err = tx.ExecContext(flight.With(ctx, lateJournal), s.dialect.Journal.InsertJournal, cl.id32, d.id, []byte(d.topic), orderKey,
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
