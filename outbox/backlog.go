package outbox

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/bounded"
	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/dialect"
)

// Count is a number of messages, counted up to a limit.
type Count = bounded.Count

// Backlog counts the messages that are stored and not sent.
type Backlog struct {
	Pending  Count // to be sent
	Retrying Count // failed, or passed over while their topic fails: to be retried
	Held     Count // wait for an earlier one of their key
	Parked   Count // wait for an operator

	// OldestPending is the age of the oldest message counted as pending, retrying or held. It
	// leaves out those held behind a parked one, which wait for an operator.
	OldestPending time.Duration
	OldestParked  time.Duration // the age of the oldest one counted as parked
}

// Unsent returns how many messages relays have yet to send, without the parked ones.
func (b Backlog) Unsent() Count { return b.Pending.Plus(b.Retrying).Plus(b.Held) }

// BacklogOptions is how [Publisher.Backlog] counts.
type BacklogOptions struct {
	// CountTo is where counting stops; a larger number is given as "at least". Defaults to
	// 10,000.
	CountTo int
}

// Backlog counts the messages that are not sent. It takes some milliseconds, however many rows
// there are, and needs no relay.
func (p *Publisher) Backlog(ctx context.Context, o BacklogOptions) (Backlog, error) {
	if o.CountTo < 0 {
		return Backlog{}, fmt.Errorf("outbox: backlog: CountTo %d is negative", o.CountTo)
	}
	most := min(cmp.Or(o.CountTo, 10_000), math.MaxInt-1)
	var rows []struct {
		Status   int   `db:"status"`
		Messages int   `db:"messages"`
		Age      int64 `db:"age"`
	}
	if err := sqlx.SelectContext(ctx, p.db.Reader(ctx), &rows, p.sql.CountBacklog, most+1, most+1, most+1, most+1); err != nil {
		return Backlog{}, fmt.Errorf("outbox: backlog: %w", database.Explain(err))
	}
	var b Backlog
	for _, row := range rows {
		n, age := bounded.UpTo(row.Messages, most), time.Duration(row.Age)*time.Microsecond
		switch row.Status {
		case dialect.OutboxPending:
			b.Pending, b.OldestPending = n, max(b.OldestPending, age)
		case dialect.OutboxRetry:
			b.Retrying, b.OldestPending = n, max(b.OldestPending, age)
		case dialect.OutboxHeld:
			b.Held, b.OldestPending = n, max(b.OldestPending, age)
		case dialect.OutboxParked:
			b.Parked, b.OldestParked = n, age
		}
	}
	return b, nil
}
