package stored

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/msgcode"
)

// Form says how a payload is stored.
type Form int16

// Forms of payloads.
const (
	Plain  Form = 0
	Sealed Form = 1
	Erased Form = 2 // erased before it was stored
)

// Never is a delay that stands for no end.
const Never = 100 * 365 * 24 * time.Hour

// MostCollisions is how many messages that collided with it a story has at most, and how many decisions on such: a
// producer may send all of its messages with one key.
const MostCollisions = 100

// MostDropped is how many dropped copies a story has at most: a key may have millions.
const MostDropped = 1000

// Message is a row of the messages table.
type Message struct {
	Name         []byte        `db:"name"`
	KeySource    []byte        `db:"key_source"` // only when one message is read
	Epoch        int           `db:"epoch"`
	ID           int64         `db:"id"`
	Consumer     int32         `db:"consumer"`
	MessageID    []byte        `db:"message_id"`
	Status       Status        `db:"status"`
	Attempts     int           `db:"attempts"`
	Topic        []byte        `db:"topic"`
	Partition    sql.NullInt64 `db:"partition_no"`
	Offset       sql.NullInt64 `db:"offset_no"`
	OrderKey     []byte        `db:"order_key"`
	EventType    []byte        `db:"event_type"`
	EventVersion []byte        `db:"event_version"`
	UUID         []byte        `db:"uuid"`
	Metadata     []byte        `db:"metadata"`
	Payload      []byte        `db:"payload"`
	Hash         int64         `db:"payload_hash"`
	ReceivedAt   int64         `db:"received_at"`
	DueAt        int64         `db:"due_at"`
	LeaseToken   int64         `db:"lease_token"`
	LastError    []byte        `db:"last_error"`
	ErrorGroup   sql.NullInt64 `db:"error_group"`
	ErrorCode    ErrorCode     `db:"error_code"`
	Reason       []byte        `db:"reason"`
	ReasonCode   ReasonCode    `db:"reason_code"`
	Original     []byte        `db:"original"`
	Aggregate    []byte        `db:"aggregate"`
	Version      sql.NullInt64 `db:"version"`
	Form         Form          `db:"payload_form"`
	Ref          []byte        `db:"payload_ref"`
}

// Of names the consumer of the message.
func (m *Message) Of() Name { return Name{string(m.Name), m.Epoch} }

// Whole reports whether the row has the payload as it came.
func (m *Message) Whole() bool { return m.Form == Plain && m.Ref == nil }

// Decoded returns the metadata of the message.
func (m *Message) Decoded() (message.Metadata, error) {
	metadata, err := msgcode.DecodeMetadata(m.Metadata)
	if err != nil {
		return nil, fmt.Errorf("message %d: %w (%w)", m.ID, ErrMetadata, err)
	}
	return metadata, nil
}

// With returns the message with this payload.
func (m *Message) With(payload []byte) (*message.Message, error) {
	metadata, err := m.Decoded()
	if err != nil {
		return nil, err
	}
	msg := message.NewMessage(string(m.UUID), payload)
	msg.Metadata = metadata
	return msg, nil
}

// ErrMetadata says that the stored metadata of a message cannot be decoded.
var ErrMetadata = errors.New("the stored metadata cannot be decoded, so somebody changed the row: " +
	"restore the metadata and retry the message, or discard it")

// Fields returns the fields of a log line about the message.
func (m *Message) Fields() watermill.LogFields {
	fields := watermill.LogFields{"consumer": string(m.Name), "epoch": m.Epoch, "message_id": keycode.String(m.MessageID)}
	for name, value := range map[string][]byte{"message_uuid": m.UUID, "topic": m.Topic} {
		if len(value) > 0 {
			fields[name] = string(value)
		}
	}
	if m.Attempts > 0 {
		fields["attempt"] = m.Attempts
	}
	return fields
}

// Message finds an open message of the namespace. It returns [ErrNotFound] if there is none with
// this id.
func (r *Rows) Message(ctx context.Context, db sqlx.QueryerContext, id int64) (row Message, err error) {
	err = sqlx.GetContext(ctx, db, &row, r.Dialect.SelectMessage, id, []byte(r.Namespace))
	if errors.Is(err, sql.ErrNoRows) {
		return row, fmt.Errorf("message %d: %w", id, ErrNotFound)
	}
	if err != nil {
		return row, fmt.Errorf("inbox: find message %d: %w", id, database.Explain(err))
	}
	return row, nil
}

// StoredKeys returns under which of these keys of a consumer a message is stored.
func (r *Rows) StoredKeys(ctx context.Context, db sqlx.QueryerContext, consumer int32, keys [][]byte) (map[string]bool, error) {
	query, args, err := r.Dialect.In(r.Dialect.Queue.SelectKeys, consumer, keys)
	if err != nil {
		return nil, err
	}
	var found [][]byte
	if err := sqlx.SelectContext(ctx, db, &found, query, args...); err != nil {
		return nil, err
	}
	kept := make(map[string]bool, len(found))
	for _, key := range found {
		kept[string(key)] = true
	}
	return kept, nil
}

// Now returns the time of the database's clock.
func (r *Rows) Now(ctx context.Context) (time.Time, error) {
	var now int64
	err := sqlx.GetContext(ctx, r.Reader(ctx), &now, r.Dialect.Now)
	return time.UnixMicro(now).UTC(), err
}

// Aggregate is a row of the versions table.
type Aggregate struct {
	Version   int64 // the last one applied
	First     int64
	HeldTo    int64
	Token     int64
	MessageID []byte
	Hash      int64
}

// Scan reads columns by position, for speed.
func (a *Aggregate) Scan(row interface{ Scan(into ...any) error }) error {
	return row.Scan(&a.Version, &a.First, &a.HeldTo, &a.Token, &a.MessageID, &a.Hash)
}

// Claim is a claim in a story.
type Claim struct {
	Name        []byte        `db:"name"`
	Epoch       int           `db:"epoch"`
	ID          []byte        `db:"message_id"`
	Result      int16         `db:"result"`
	ProcessedAt int64         `db:"processed_at"`
	OutcomeAt   sql.NullInt64 `db:"outcome_at"`
	Topic       []byte        `db:"outcome_topic"`
	Outcome     []byte        `db:"outcome"`
	Body        []byte        `db:"body"`
}
