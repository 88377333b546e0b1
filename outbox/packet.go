package outbox

import (
	"context"
	"fmt"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/dialect"
)

// refused explains err, with which the database refused rows in one statement.
func (p *Publisher) refused(ctx context.Context, rows []row, err error) error {
	if dialect.Classify(err) == dialect.Unavailable && p.db.BeyondPacket(ctx, texts(rows)...) {
		return fmt.Errorf("%w: %w", ErrTooLarge, err)
	}
	return database.Explain(err)
}

// texts returns the arguments of rows that may be large.
func texts(rows []row) (all [][]byte) {
	for i := range rows {
		r := &rows[i]
		all = append(all, []byte(r.topic), []byte(r.orderKey.String), []byte(r.uuid), []byte(r.metadata.String), r.payload)
	}
	return all
}

// named names the messages of rows in an error.
func named(rows []row) string {
	if len(rows) == 1 {
		return fmt.Sprintf("message %q", rows[0].uuid)
	}
	return fmt.Sprintf("%d messages, %q to %q,", len(rows), rows[0].uuid, rows[len(rows)-1].uuid)
}
