package outbox

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/dialect"
)

// refused explains err, with which the database refused rows in one statement.
func (p *Publisher) refused(ctx context.Context, rows []row, err error) error {
	if dialect.Classify(err) == dialect.Unavailable && p.beyondPacket(ctx, rows) {
		return fmt.Errorf("%w: %w", ErrTooLarge, err)
	}
	return database.Explain(err)
}

// beyondPacket reports whether rows are larger than the server's packet: MySQL then cuts the
// connection, and may not get to say why.
func (p *Publisher) beyondPacket(ctx context.Context, rows []row) bool {
	size := 0
	for i := range rows {
		size += rows[i].size()
	}
	if p.db.Dialect.Name != dialect.MySQLName || size < chunkBytes/2 {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	var settings []struct {
		Name  string `db:"Variable_name"`
		Value string `db:"Value"`
	}
	if err := p.db.SelectContext(ctx, &settings, p.db.Dialect.SelectSettings); err != nil {
		return false // the server really is out of reach
	}
	for _, s := range settings {
		if s.Name == "max_allowed_packet" {
			most, err := strconv.Atoi(s.Value)
			return err == nil && size >= most-most/16 // a statement is larger than its arguments
		}
	}
	return false
}

// named names the messages of rows in an error.
func named(rows []row) string {
	if len(rows) == 1 {
		return fmt.Sprintf("message %q", rows[0].uuid)
	}
	return fmt.Sprintf("%d messages, %q to %q,", len(rows), rows[0].uuid, rows[len(rows)-1].uuid)
}
