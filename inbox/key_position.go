package inbox

import (
	"database/sql"
	"errors"
	"fmt"
	"runtime/debug"
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/keycode"
)

// Position is a message's place in a log such as Kafka's.
type Position struct {
	Topic     string // empty: the one that was subscribed to
	Partition string // empty: not known
	Offset    int64
}

// String returns p as Kafka's users write it, orders[3]@17, or only the topic if the rest is not known.
func (p Position) String() string {
	if p.Partition == "" {
		return p.Topic
	}
	return fmt.Sprintf("%s[%s]@%d", p.Topic, p.Partition, p.Offset)
}

// ByPosition uses the message's place in a log. A message that its producer sends twice has
// two places and is two messages: this key recognises redeliveries, not repeated sends.
// A topic that is deleted and created again repeats its offsets: raise the Epoch then.
func ByPosition(of func(*message.Message) (Position, error)) Key {
	if of == nil {
		of = func(*message.Message) (Position, error) {
			return Position{}, errors.New("inbox.ByPosition was given no function")
		}
	}
	return Key{kind: byPosition, source: "position", own: true, form: place, of: func(msg *message.Message) (string, error) {
		p, err := of(msg)
		if err != nil {
			return "", err
		}
		if p.Topic == "" {
			p.Topic = subscribed(msg)
		}
		if p.Topic == "" || p.Partition == "" {
			return "", fmt.Errorf("%w: an offset means nothing without topic (%q) and partition (%q)",
				errNoKey, p.Topic, p.Partition)
		}
		return keycode.Join(p.Topic, p.Partition, strconv.FormatInt(p.Offset, 10)), nil
	}}
}

// subscribed returns the topic that msg came from.
var subscribed = func(msg *message.Message) string { return topicOf(msg.Context()) }

// position returns the place of msg in its log, if that is known and the partition is a number.
func (s *Store) position(msg *message.Message) (partition, offset sql.NullInt64) {
	if s.config.Position == nil {
		return partition, offset
	}
	defer func() {
		if r := recover(); r != nil {
			s.panics.Add(1)
			s.log.Error("inbox: Position panicked; the message is stored without one", fmt.Errorf("panic: %v\n%s", r, debug.Stack()), nil)
		}
	}()
	p, err := s.config.Position(msg)
	if err != nil {
		return partition, offset
	}
	number, err := strconv.ParseInt(p.Partition, 10, 64)
	if err != nil {
		return partition, offset
	}
	return sql.NullInt64{Int64: number, Valid: true}, sql.NullInt64{Int64: p.Offset, Valid: true}
}

// positionOf returns the stored position of a message.
func positionOf(topic string, partition, offset sql.NullInt64) Position {
	p := Position{Topic: topic, Offset: offset.Int64}
	if partition.Valid {
		p.Partition = strconv.FormatInt(partition.Int64, 10)
	}
	return p
}
