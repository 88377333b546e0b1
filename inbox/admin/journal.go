package admin

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/stored"
)

// journaled returns for which consumers the message with the stored key id is kept, and when each
// received it.
func (a *Admin) journaled(ctx context.Context, id []byte) (map[stored.Name]time.Time, error) {
	var rows []journalRow
	err := sqlx.SelectContext(ctx, a.rows.Reader(ctx), &rows, a.rows.Dialect.Journal.StoryJournal, id, []byte(a.rows.Namespace))
	kept := make(map[stored.Name]time.Time, len(rows))
	for _, row := range rows {
		kept[row.Of()] = time.UnixMicro(row.ReceivedAt).UTC()
	}
	return kept, err
}

// journalRow is a row of the journal.
type journalRow struct {
	stored.Message

	ProcessedAt int64 `db:"processed_at"`
}

// JournalFilter says which journaled messages are meant. Fields that are zero match all, but
// Consumer, which is required.
type JournalFilter struct {
	Consumer string
	Epoch    *int // nil: the newest that has handled a message
	Topic    string

	// Since and Until bound when the message was handled; the end is not part of it.
	Since time.Time
	Until time.Time

	// UpTo is the greatest [Journaled.ID], 0 for no bound: what is handled meanwhile has greater ones.
	UpTo int64
}

// Journaled is a completed message that its consumer's journal has kept.
type Journaled struct {
	ID          int64 // in the journal, in the order of handling
	Consumer    string
	Epoch       int
	MessageID   string // the key
	Topic       string
	OrderKey    string // where a pubsub.Durable with an OrderKey had it
	EventType   string
	Message     *message.Message // without its payload where that is Unreadable
	Unreadable  error            // inbox.ErrErased, or what passes
	ReceivedAt  time.Time
	ProcessedAt time.Time
}

// Journal lists what the journal of a consumer has kept, in the order in which it was handled: at
// most limit messages, which is at most MaxPage, after the one with the given ID (0 to begin).
// [inbox.ErrNotFound] is returned where there is no such consumer.
func (a *Admin) Journal(ctx context.Context, f JournalFilter, after int64, limit int) ([]Journaled, error) {
	if err := validPage(limit); err != nil {
		return nil, fmt.Errorf("inbox: read the journal: %w", err)
	}
	args, err := a.journalArgs(ctx, f, after)
	var rows []journalRow
	if err == nil {
		err = sqlx.SelectContext(ctx, a.rows.Reader(ctx), &rows, a.rows.Dialect.Journal.SelectJournal, append(args, limit)...)
	}
	all := make([]Journaled, 0, len(rows))
	for _, row := range rows {
		if err == nil {
			var j Journaled
			j, err = a.readJournal(ctx, row)
			all = append(all, j)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("inbox: read the journal of consumer %q: %w", f.Consumer, database.Explain(err))
	}
	return all, nil
}

func (a *Admin) readJournal(ctx context.Context, row journalRow) (Journaled, error) {
	m, err := a.whole(ctx, row.Message)
	if err != nil {
		return Journaled{}, err
	}
	msg := message.NewMessage(m.UUID, m.Payload)
	msg.Metadata = m.Metadata
	return Journaled{
		ID: m.ID, Consumer: m.Consumer, Epoch: m.Epoch, MessageID: m.MessageID, Topic: m.Topic, OrderKey: keycode.String(row.OrderKey),
		EventType: m.EventType, Message: msg, Unreadable: m.Unreadable, ReceivedAt: m.ReceivedAt,
		ProcessedAt: time.UnixMicro(row.ProcessedAt).UTC(),
	}, nil
}

// TopicCount is how many messages there are of a topic.
type TopicCount struct {
	Topic    string
	Messages int
	First    time.Time // when the first of them was handled …
	Last     time.Time // … and the last
	LastID   int64     // the greatest [Journaled.ID]
}

// CountJournal counts by topic what [Admin.Journal] lists. It reads all rows that f matches.
func (a *Admin) CountJournal(ctx context.Context, f JournalFilter) ([]TopicCount, error) {
	var rows []struct {
		Topic    []byte `db:"topic"`
		Messages int    `db:"messages"`
		First    int64  `db:"first_at"`
		Last     int64  `db:"last_at"`
		LastID   int64  `db:"last_id"`
	}
	args, err := a.journalArgs(ctx, f, 0)
	if err == nil {
		err = sqlx.SelectContext(ctx, a.rows.Reader(ctx), &rows, a.rows.Dialect.Journal.CountJournal, args...)
	}
	if err != nil {
		return nil, fmt.Errorf("inbox: count the journal of consumer %q: %w", f.Consumer, database.Explain(err))
	}
	counts := make([]TopicCount, 0, len(rows))
	for _, r := range rows {
		counts = append(counts, TopicCount{
			string(r.Topic), r.Messages, time.UnixMicro(r.First).UTC(), time.UnixMicro(r.Last).UTC(), r.LastID,
		})
	}
	return counts, nil
}

// journalArgs are the arguments of a statement for what f matches behind the row after.
func (a *Admin) journalArgs(ctx context.Context, f JournalFilter, after int64) ([]any, error) {
	if f.Consumer == "" {
		return nil, errors.New("which consumer's? each has a journal of its own")
	}
	consumer, err := a.journalOf(ctx, f)
	if err != nil {
		return nil, err
	}
	var topic any
	if f.Topic != "" {
		topic = []byte(f.Topic)
	}
	since, until := int64(math.MinInt64), int64(math.MaxInt64)
	if !f.Since.IsZero() {
		since = f.Since.UnixMicro()
	}
	if !f.Until.IsZero() {
		until = f.Until.UnixMicro()
	}
	upTo := f.UpTo
	if upTo == 0 {
		upTo = math.MaxInt64
	}
	return []any{after, upTo, consumer, topic, topic, since, until}, nil
}

// journalOf returns the consumer and epoch that f means: the newest epoch that kept something
// where it names none.
func (a *Admin) journalOf(ctx context.Context, f JournalFilter) (int32, error) {
	consumers, err := a.rows.Consumers(ctx, f.Consumer, f.Epoch)
	if err != nil {
		return 0, err
	}
	if len(consumers) == 0 {
		return 0, inbox.ErrNotFound
	}
	for i := len(consumers) - 1; i > 0; i-- { // by epoch
		var some []journalRow
		err := sqlx.SelectContext(ctx, a.rows.Reader(ctx), &some, a.rows.Dialect.Journal.SelectJournal,
			0, int64(math.MaxInt64), consumers[i].ID, nil, nil, int64(math.MinInt64), int64(math.MaxInt64), 1)
		if err != nil || len(some) > 0 {
			return consumers[i].ID, err
		}
	}
	return consumers[0].ID, nil
}
