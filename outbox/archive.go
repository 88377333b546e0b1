package outbox

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
)

// ArchiveFilter selects from the messages that relays have sent and keep for
// RelayConfig.Retention. Zero fields match all.
type ArchiveFilter struct {
	Topic string

	// Since and Until bound when the message was stored; Until is exclusive.
	Since time.Time
	Until time.Time

	// UpTo is the greatest [Archived.ID]: messages stored meanwhile have greater ones.
	UpTo int64
}

// Archived is a message that a relay has sent and keeps.
type Archived struct {
	ID        int64 // in the outbox; grows in the order of storing
	Topic     string
	OrderKey  string
	EventType string
	Message   *message.Message
	Broken    error // why its metadata cannot be read
	StoredAt  time.Time
	SentAt    time.Time
}

type sentRow struct {
	letterRow
	EventType *string `db:"event_type"`
	SentAt    int64   `db:"sent_at"`
}

// MaxPage is how many messages [Publisher.Archive] lists at most.
const MaxPage = 1000

// Archive lists at most limit messages that relays have sent and keep, after the given ID (0 to
// begin), in the order in which they were stored. The limit is between 1 and MaxPage.
func (p *Publisher) Archive(ctx context.Context, f ArchiveFilter, after int64, limit int) ([]Archived, error) {
	if limit < 1 || limit > MaxPage {
		return nil, fmt.Errorf("outbox: list sent messages: limit %d is not between 1 and %d", limit, MaxPage)
	}
	var rows []sentRow
	if err := sqlx.SelectContext(ctx, p.db.Reader(ctx), &rows, p.sql.SelectSent, append(f.args(after), limit)...); err != nil {
		return nil, fmt.Errorf("outbox: list sent messages: %w", database.Explain(err))
	}
	all := make([]Archived, 0, len(rows))
	for i := range rows {
		r := &rows[i]
		l := r.letter(time.Now())
		all = append(all, Archived{
			ID: r.ID, Topic: r.Topic, OrderKey: value(r.OrderKey), EventType: value(r.EventType), Message: l.msg, Broken: l.broken,
			StoredAt: time.UnixMicro(r.StoredAt).UTC(), SentAt: time.UnixMicro(r.SentAt).UTC(),
		})
	}
	return all, nil
}

// args are the arguments of a statement for the rows after the given ID that f matches.
func (f ArchiveFilter) args(after int64) []any {
	var topic any
	if f.Topic != "" {
		topic = f.Topic
	}
	upTo, since, until := f.UpTo, int64(math.MinInt64), int64(math.MaxInt64)
	if upTo == 0 {
		upTo = math.MaxInt64
	}
	if !f.Since.IsZero() {
		since = f.Since.UnixMicro()
	}
	if !f.Until.IsZero() {
		until = f.Until.UnixMicro()
	}
	return []any{after, upTo, topic, topic, since, until}
}

// TopicCount says how many messages a topic has.
type TopicCount struct {
	Topic    string
	Messages int
	First    time.Time // when the first was stored
	Last     time.Time // when the last was stored
	LastID   int64     // the greatest [Archived.ID]
}

// CountArchive counts, by topic, what [Publisher.Archive] lists. It reads all rows that f matches.
func (p *Publisher) CountArchive(ctx context.Context, f ArchiveFilter) ([]TopicCount, error) {
	var rows []struct {
		Topic    string `db:"topic"`
		Messages int    `db:"messages"`
		First    int64  `db:"first_at"`
		Last     int64  `db:"last_at"`
		LastID   int64  `db:"last_id"`
	}
	if err := sqlx.SelectContext(ctx, p.db.Reader(ctx), &rows, p.sql.CountSent, f.args(0)...); err != nil {
		return nil, fmt.Errorf("outbox: count sent messages: %w", database.Explain(err))
	}
	counts := make([]TopicCount, 0, len(rows))
	for _, r := range rows {
		counts = append(counts, TopicCount{
			r.Topic, r.Messages, time.UnixMicro(r.First).UTC(), time.UnixMicro(r.Last).UTC(), r.LastID,
		})
	}
	return counts, nil
}
