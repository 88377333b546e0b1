package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/ambient"
	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/dialect"
)

// State is the state of a message in the outbox.
type State int

// States of messages in the outbox. Where RelayConfig.Retention is 0, relays delete messages
// instead of marking them Sent.
const (
	Pending  State = dialect.OutboxPending
	Retrying State = dialect.OutboxRetry  // failed, to be retried
	Held     State = dialect.OutboxHeld   // waits for an earlier one of its order key
	Aside    State = dialect.OutboxParked // parked
	Sent     State = dialect.OutboxSent
)

// String returns the name of the state.
func (s State) String() string {
	switch s {
	case Pending:
		return "PENDING"
	case Retrying:
		return "RETRYING"
	case Held:
		return "HELD"
	case Aside:
		return "PARKED"
	case Sent:
		return "SENT"
	}
	return fmt.Sprintf("State(%d)", int(s))
}

// Entry describes a message in the outbox, without its payload and metadata.
type Entry struct {
	ID        int64
	Topic     string
	OrderKey  string
	UUID      string
	EventType string
	State     State
	Attempts  int
	Error     string // of the last attempt
	StoredAt  time.Time
	SentAt    time.Time // zero until it is sent
}

// mostCaused bounds how many messages of one cause are listed.
const mostCaused = 1000

// timeMargin is by how much the order of ids and the order of times may differ: a row gets its
// id and its time one after the other.
const timeMargin = 10 * time.Second

type entryRow struct {
	ID        int64          `db:"id"`
	Topic     string         `db:"topic"`
	OrderKey  sql.NullString `db:"order_key"`
	UUID      string         `db:"uuid"`
	EventType sql.NullString `db:"event_type"`
	Status    State          `db:"status"`
	Attempts  int            `db:"attempts"`
	CreatedAt int64          `db:"created_at"`
	SentAt    sql.NullInt64  `db:"sent_at"`
	LastError sql.NullString `db:"last_error"`
}

// CausedBy lists at most 1000 messages that the handler of an inbox's consumer stored between
// from and until for the message with this key, in the order in which they were stored. It
// finds the place by some dozens of reads of the primary key, and then reads everything that
// anyone stored in that time: choose from and until close to the handler's run. The list lacks
// messages that a relay has sent and deleted, and those stored through [WithTx] or [InTx].
func (p *Publisher) CausedBy(ctx context.Context, consumer, messageID string, from, until time.Time) ([]Entry, error) {
	entries, err := p.causedBy(ctx, ambient.Cause(consumer, messageID), from.Add(-timeMargin), until.Add(timeMargin))
	if err != nil {
		return nil, fmt.Errorf("outbox: list what message %q of consumer %q caused: %w", messageID, consumer, database.Explain(err))
	}
	return entries, nil
}

func (p *Publisher) causedBy(ctx context.Context, cause string, from, until time.Time) ([]Entry, error) {
	var lowest, highest int64
	if err := p.db.Reader(ctx).QueryRowxContext(ctx, p.sql.SelectEnds).Scan(&lowest, &highest); err != nil {
		return nil, err
	}
	first, err := p.idAt(ctx, lowest, highest, from)
	if err != nil {
		return nil, err
	}
	behind, err := p.idAt(ctx, first, highest, until)
	if err != nil || behind == first {
		return nil, err
	}
	var rows []entryRow
	if err := sqlx.SelectContext(ctx, p.db.Reader(ctx), &rows, p.sql.SelectCaused, first, behind-1, cause, mostCaused); err != nil {
		return nil, err
	}
	entries := make([]Entry, 0, len(rows))
	for _, r := range rows {
		e := Entry{
			ID: r.ID, Topic: r.Topic, OrderKey: r.OrderKey.String, UUID: r.UUID, EventType: r.EventType.String,
			State: r.Status, Attempts: r.Attempts, Error: r.LastError.String, StoredAt: time.UnixMicro(r.CreatedAt).UTC(),
		}
		if r.SentAt.Valid {
			e.SentAt = time.UnixMicro(r.SentAt.Int64).UTC()
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// idAt returns the first id stored at or after the given time, or highest+1, as far as ids grow
// with time. It searches by halves between lowest and highest.
func (p *Publisher) idAt(ctx context.Context, lowest, highest int64, at time.Time) (int64, error) {
	for lowest <= highest {
		middle := lowest + (highest-lowest)/2
		var id, created int64
		err := p.db.Reader(ctx).QueryRowxContext(ctx, p.sql.SelectNext, middle).Scan(&id, &created)
		switch {
		case errors.Is(err, sql.ErrNoRows): // relays have deleted the rest meanwhile
			highest = middle - 1
		case err != nil:
			return 0, err
		case created >= at.UnixMicro():
			highest = middle - 1
		default:
			lowest = id + 1
		}
	}
	return lowest, nil
}
