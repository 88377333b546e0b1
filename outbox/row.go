package outbox

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/reserved"
)

// row is a message as the table stores it.
type row struct {
	hash      int64
	topic     string
	orderKey  sql.NullString
	uuid      string
	eventType sql.NullString
	metadata  sql.NullString
	payload   []byte
	cause     sql.NullString
}

// maxName bounds topics, UUIDs and keys, in bytes: longer ones are mistakes.
const maxName = 4096

// newRow returns the row for msg, or an error for anything in it that a database could refuse or
// change.
func (p *Publisher) newRow(topic string, msg *message.Message) (row, error) {
	if msg == nil {
		return row{}, errors.New("the message is nil")
	}
	msg, err := p.stamped(topic, msg)
	if err != nil {
		return row{}, err
	}
	key := ""
	if p.config.OrderKey != nil {
		if key, err = p.config.OrderKey(topic, msg); err != nil {
			return row{}, fmt.Errorf("Config.OrderKey: %w", err)
		}
	}
	eventType := p.config.Describe(msg)
	for _, field := range []struct {
		name, value string
		required    bool
	}{{"topic", topic, true}, {"UUID", msg.UUID, true}, {"order key", key, false}, {"event type", eventType, false}} {
		if err := checkText(field.name, field.value, field.required); err != nil {
			return row{}, err
		}
	}
	metadata, err := encodeMetadata(reserved.Strip(msg.Metadata))
	if err != nil {
		return row{}, err
	}
	r := row{
		hash: hash(key), topic: topic, uuid: msg.UUID, metadata: metadata, payload: msg.Payload,
		orderKey:  sql.NullString{String: key, Valid: key != ""},
		eventType: sql.NullString{String: eventType, Valid: eventType != ""},
	}
	if key == "" {
		r.hash = hash(msg.UUID)
	}
	return r, nil
}

func checkText(name, value string, required bool) error {
	switch {
	case required && value == "":
		return fmt.Errorf("the %s is empty", name)
	case len(value) > maxName:
		return fmt.Errorf("the %s has %d bytes, more than %d", name, len(value), maxName)
	case !utf8.ValidString(value) || strings.ContainsRune(value, 0):
		return fmt.Errorf("the %s %q is not text: it must be UTF-8 without zero bytes", name, value)
	}
	return nil
}

// encodeMetadata returns md as a JSON object; nil stays nil.
func encodeMetadata(md message.Metadata) (sql.NullString, error) {
	if md == nil {
		return sql.NullString{}, nil
	}
	for name, value := range md {
		if !utf8.ValidString(name) || !utf8.ValidString(value) {
			return sql.NullString{}, fmt.Errorf("the metadata field %q is not UTF-8: encode it, in base64 for instance", name)
		}
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(md); err != nil {
		return sql.NullString{}, fmt.Errorf("metadata to JSON: %w", err)
	}
	return sql.NullString{String: strings.TrimSuffix(b.String(), "\n"), Valid: true}, nil
}

// hash spreads keys over shards and lanes. The table stores it, so it must never change.
func hash(key string) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(key))  // a hash takes everything
	return int64(h.Sum64() >> 1) //nolint:gosec // 63 bits fit
}

func (r *row) size() int {
	return len(r.topic) + len(r.orderKey.String) + len(r.uuid) + len(r.metadata.String) + len(r.payload) + len(r.cause.String)
}

func (r *row) args() []any {
	return []any{r.hash, r.topic, r.orderKey, r.uuid, r.eventType, r.metadata, r.payload, r.cause}
}
