package outbox

import (
	"context"
	"fmt"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/dialect"
)

// refused explains err, with which the database refused rows in one statement.
func (p *Publisher) refused(ctx context.Context, rows []row, err error) error {
	size := 0
	for i := range rows {
		size += rows[i].size()
	}
	if dialect.Classify(err) == dialect.Unavailable && p.db.BeyondPacket(ctx, size) {
		return fmt.Errorf("%w: %w", ErrTooLarge, err)
	}
	return database.Explain(err)
}

// named names the messages of rows in an error.
func named(rows []row) string {
	if len(rows) == 1 {
		return fmt.Sprintf("message %q", rows[0].uuid)
	}
	return fmt.Sprintf("%d messages, %q to %q,", len(rows), rows[0].uuid, rows[len(rows)-1].uuid)
}
