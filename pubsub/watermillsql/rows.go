package watermillsql

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/outbox"
)

// row is a message as the arguments of a statement.
type row struct {
	args [3]any
	text int // bytes of the row in a statement's text, into which the driver may put the arguments
}

type statement struct {
	query    string
	args     []any
	prepared bool // its text with the arguments would be too large
}

// encode returns the rows of the messages, or an error that says what is wrong with which.
func (d *database) encode(topic string, t table, msgs []*message.Message) ([]row, error) {
	rows := make([]row, len(msgs))
	verdicts := make([]error, len(msgs))
	var first error
	for n, msg := range msgs {
		var err error
		if rows[n], err = d.encodeOne(topic, t, msg); err != nil {
			verdicts[n] = outbox.Permanent(fmt.Errorf("message %q: %w", msg.UUID, err))
			if first == nil {
				first = verdicts[n]
			}
		}
	}
	if first == nil || len(msgs) == 1 {
		return rows, first
	}
	for n, verdict := range verdicts {
		if verdict == nil {
			verdicts[n] = fmt.Errorf("message %q was not stored, as another message of the call cannot be: %s",
				msgs[n].UUID, first.Error()) // not wrapped: it is not an error of this message
		}
	}
	return nil, &outbox.PartialError{Errors: verdicts}
}

func (d *database) encodeOne(topic string, t table, msg *message.Message) (row, error) {
	switch {
	case !utf8.ValidString(msg.UUID) || strings.ContainsRune(msg.UUID, 0):
		return row{}, fmt.Errorf("its UUID is not text")
	case t.uuid > 0 && utf8.RuneCountInString(msg.UUID) > t.uuid:
		err := fmt.Errorf("its UUID is longer than the %d characters of the column uuid", t.uuid)
		if t.uuid < longestUUID {
			err = fmt.Errorf("%w; this statement widens it: %s", err,
				d.remedy(topic, "uuid", d.varchar))
		}
		return row{}, err
	}
	if problem := t.refuses(msg.Payload); problem != "" {
		return row{}, fmt.Errorf("its payload %s; this makes the column take any bytes: %s", problem,
			d.remedy(topic, "payload", d.blob))
	}
	for key, value := range msg.Metadata {
		if !utf8.ValidString(key) || !utf8.ValidString(value) {
			return row{}, fmt.Errorf("its metadata %q is not UTF-8: the table would change it", key)
		}
	}
	metadata := msg.Metadata
	if metadata == nil {
		metadata = message.Metadata{} // watermill-sql would read nil as nil, and Set would panic
	}
	encoded, err := json.Marshal(metadata)
	if err != nil {
		return row{}, fmt.Errorf("encode its metadata: %w", err)
	}
	// Text is passed as a string: drivers that put values into the statement, as behind a pooler,
	// mark bytes as binary, which a JSON column refuses.
	r := row{args: [3]any{msg.UUID, []byte(msg.Payload), string(encoded)}}
	if !t.binary {
		r.args[1] = string(msg.Payload)
	}
	r.text = len(msg.UUID) + len(msg.Payload) + len(encoded)
	if t.packet == 0 {
		return r, nil
	}
	if r.text+overhead > t.packet {
		return row{}, fmt.Errorf("%w: its %d bytes exceed the server's max_allowed_packet, %d", outbox.ErrTooLarge, r.text, t.packet)
	}
	r.text = len(`(, , ), `) + dialect.TextBytes(msg.UUID) + dialect.TextBytes(msg.Payload) + dialect.TextBytes(encoded)
	return r, nil
}

// refuses says why the payload's column does not take a payload; without strict mode, MySQL would
// silently cut it off.
func (t table) refuses(payload []byte) string {
	size := len(payload)
	if strings.Contains(t.payload.kind, "char") {
		size = utf8.RuneCount(payload)
	}
	switch {
	case t.payload.length > 0 && size > t.payload.length:
		return fmt.Sprintf("does not fit into the column payload, which has type %s and room for %d", t.payload.kind, t.payload.length)
	case t.json && (!json.Valid(payload) || !utf8.Valid(payload)):
		return "is not JSON, as the column payload wants it"
	}
	return ""
}

const (
	longestUUID = 255  // characters of the column in a table of ours
	overhead    = 1024 // more than the bytes of a statement around one row
)

// Both bounds of a statement are far below those of the databases: 65,535 placeholders, and 16
// MiB, MariaDB's default for max_allowed_packet. A server may have a smaller one.
const (
	mostRows  = 1000
	mostBytes = 4 << 20
)

// split divides rows into statements.
func (d *database) split(topic string, t table, rows []row) []statement {
	most := mostBytes
	if t.packet > 0 {
		most = min(most, t.packet-overhead)
	}
	var all []statement
	for len(rows) > 0 {
		n, size := 1, rows[0].text
		for n < len(rows) && n < mostRows && size+rows[n].text <= most {
			size += rows[n].text
			n++
		}
		n = dialect.AtOnce(n)
		s := d.statement(topic, rows[:n])
		s.prepared = t.packet > 0 && size > t.packet-overhead // it has one row
		all = append(all, s)
		rows = rows[n:]
	}
	return all
}

func (d *database) statement(topic string, rows []row) statement {
	var query strings.Builder
	fmt.Fprintf(&query, d.insert, d.messages(topic))
	args := make([]any, 0, len(rows)*3)
	for n, r := range rows {
		if n > 0 {
			query.WriteString(", ")
		}
		if strings.Contains(d.row, "%d") {
			fmt.Fprintf(&query, d.row, 3*n+1, 3*n+2, 3*n+3)
		} else {
			query.WriteString(d.row)
		}
		args = append(args, r.args[:]...)
	}
	return statement{query: query.String(), args: args}
}
