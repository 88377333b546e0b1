package outbox

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/dialect"
)

// letterRow is a message as a relay reads it.
type letterRow struct {
	ID       int64   `db:"id"`
	Hash     int64   `db:"key_hash"`
	Blocked  *int64  `db:"blocked_key"`
	Status   int     `db:"status"`
	Attempts int     `db:"attempts"`
	StoredAt int64   `db:"created_at"`
	Age      int64   `db:"age"`
	Behind   *int64  `db:"behind"`
	Topic    string  `db:"topic"`
	UUID     string  `db:"uuid"`
	OrderKey *string `db:"order_key"`
	Metadata *string `db:"metadata"`
	Payload  payload `db:"payload"`
}

// payload is nil only where the column is NULL. Some drivers return an empty column as a nil
// []byte.
type payload []byte

// Scan implements sql.Scanner.
func (p *payload) Scan(src any) error {
	switch v := src.(type) {
	case nil:
		*p = nil
	case []byte:
		*p = append(payload{}, v...)
	case string:
		*p = payload(v)
	default:
		return fmt.Errorf("payload of type %T", src)
	}
	return nil
}

// unknown stands for a message before a letter whose key has too many to search for it.
const unknown = -1

// letter is a message that a relay has read.
type letter struct {
	id   int64
	at   int64 // when it was stored, by the clock of the database
	hash int64

	keyed    bool  // it has an order
	head     bool  // it was set aside, and the later messages of its key wait for it
	again    bool  // it was set aside
	drawn    bool  // a look for its key found it
	back     bool  // it is to be held back in the table instead of sent
	failed   bool  // it failed, or its topic did: the later messages of its key wait for it
	status   int   // in the table, when it was read
	behind   int64 // an unsent message of its key before it, 0 for none, or unknown; looks for keys do not fill it
	attempts int
	bytes    int // of payload and metadata
	topic    string
	msg      *message.Message
	stored   time.Time // by the local clock
	failedAt time.Time // when it first failed without having been judged since
	broken   error     // why the row cannot be made a message
}

// copy returns the message for one call of the publisher, which may change what it gets: an attempt
// must not begin with what the one before it left. A decorator may set metadata of a message that has none.
func (l *letter) copy() *message.Message {
	c := message.NewMessage(l.msg.UUID, bytes.Clone(l.msg.Payload))
	maps.Copy(c.Metadata, l.msg.Metadata)
	return c
}

// row names l in the statements that record results.
func (l *letter) row() dialect.Row { return dialect.Row{ID: l.id, StoredAt: l.at} }

// setAside reports whether l was set aside when it was read.
func (l *letter) setAside() bool { return setAside(l.status) }

func setAside(status int) bool {
	return status == dialect.OutboxRetry || status == dialect.OutboxParked
}

// suspect reports whether l has failed, or is bound to fail.
func (l *letter) suspect() bool { return l.attempts > 0 || !l.failedAt.IsZero() || l.broken != nil }

// fields are what a log line says about a letter: never metadata or payload.
func (l *letter) fields() watermill.LogFields {
	return watermill.LogFields{"topic": l.topic, "message_uuid": l.msg.UUID, "attempt": l.attempts}
}

// event describes a letter to observers.
func (l *letter) event(reason string, err error) Event {
	return Event{
		Topic: l.topic, UUID: l.msg.UUID, Reason: reason, Count: 1, Attempts: l.attempts, Err: err, Metadata: l.msg.Metadata,
	}
}

func (r *letterRow) letter(read time.Time) *letter {
	l := &letter{
		id: r.ID, at: r.StoredAt, hash: r.Hash, keyed: r.OrderKey != nil, head: r.Status == dialect.OutboxRetry && r.Blocked != nil,
		again: r.Status == dialect.OutboxRetry, status: r.Status,
		attempts: r.Attempts, bytes: len(r.Payload), topic: r.Topic, msg: message.NewMessage(r.UUID, message.Payload(r.Payload)),
		stored: read.Add(-time.Duration(r.Age) * time.Microsecond),
	}
	if r.Behind != nil {
		l.behind = *r.Behind
	}
	l.msg.Metadata = nil
	if r.Metadata == nil {
		return l
	}
	l.bytes += len(*r.Metadata)
	if err := json.Unmarshal([]byte(*r.Metadata), &l.msg.Metadata); err != nil {
		l.msg.Metadata = nil
		l.broken = Permanent(fmt.Errorf("metadata of message %q: %w", r.UUID, err))
	}
	return l
}
