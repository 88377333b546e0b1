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

// journaled returns the consumers whose journal has the message with the stored key id, and when
// each received it.
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

// JournalFilter selects journaled messages. Consumer is required; other zero fields match all.
type JournalFilter struct {
	Consumer string
	Epoch    *int // nil: the newest that has handled a message
	Topic    string

	// Since and Until limit the time at which the message was handled; Until is exclusive.
	Since time.Time
	Until time.Time

	// UpTo is the greatest [Journaled.ID], 0 for no limit. Messages that are handled later have
	// greater ones.
	UpTo int64
}

// Journaled is a completed message in a consumer's journal.
type Journaled struct {
	ID          int64 // in the journal, in the order of handling
	Consumer    string
	Epoch       int
	MessageID   string // the key
	Topic       string
	OrderKey    string // if a pubsub.Durable with an OrderKey stored it
	EventType   string
	Message     *message.Message // without its payload if Unreadable is set
	Unreadable  error            // inbox.ErrErased, or a temporary error
	ReceivedAt  time.Time
	ProcessedAt time.Time
}

// Journal lists a consumer's journal in the order of handling: at most limit messages (up to
// MaxPage) after the one with the given ID, which is 0 to begin. It returns [inbox.ErrNotFound] if
// there is no such consumer.
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

// TopicCount counts the messages of a topic.
type TopicCount struct {
	Topic    string
	Messages int
	First    time.Time // when the first message was handled …
	Last     time.Time // … and the last
	LastID   int64     // the greatest [Journaled.ID]
}

// CountJournal counts the messages of [Admin.Journal] by topic. It reads all rows that f matches.
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

// journalArgs returns the arguments of a statement for f, from after on.
func (a *Admin) journalArgs(ctx context.Context, f JournalFilter, after int64) ([]any, error) {
	if f.Consumer == "" {
		return nil, errors.New("no Consumer is given: each consumer has its own journal")
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

// journalOf returns the row of the consumer and epoch that f means. If f has no Epoch, that is the
// newest epoch with a journal.
func (a *Admin) journalOf(ctx context.Context, f JournalFilter) (int32, error) {
	consumers, err := a.rows.Consumers(ctx, f.Consumer, f.Epoch)
	if err != nil {
		return 0, err
	}
	if len(consumers) == 0 {
		return 0, inbox.ErrNotFound
	}
	for i := len(consumers) - 1; i > 0; i-- { // sorted by epoch
		var some []journalRow
		err := sqlx.SelectContext(ctx, a.rows.Reader(ctx), &some, a.rows.Dialect.Journal.SelectJournal,
			0, int64(math.MaxInt64), consumers[i].ID, nil, nil, int64(math.MinInt64), int64(math.MaxInt64), 1)
		if err != nil || len(some) > 0 {
			return consumers[i].ID, err
		}
	}
	return consumers[0].ID, nil
}
