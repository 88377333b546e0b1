package watermillsql

import (
	"encoding/json"
	"fmt"

	wmsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/reserved"
)

// MetadataKey is the metadata field with the stored text of metadata that is not a JSON object,
// as only a program that writes the table by itself stores it.
const MetadataKey = reserved.Prefix + "sql_metadata"

// received completes a row that was scanned. watermill-sql's own adapters fail at metadata that is
// not an object of strings, and its subscriber then asks for the same row for ever.
func received(r wmsql.Row, err error) (wmsql.Row, error) {
	if err != nil {
		return wmsql.Row{}, fmt.Errorf("scan a message: %w", err)
	}
	r.Msg = message.NewMessage(string(r.UUID), r.Payload)
	r.Msg.Metadata = decoded(r.Metadata)
	return r, nil
}

// decoded returns stored metadata: strings as they are, nothing for null, and the JSON text of
// other values. It is never nil: Metadata.Set would panic.
func decoded(stored []byte) message.Metadata {
	if len(stored) == 0 {
		return message.Metadata{}
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(stored, &fields) != nil {
		return message.Metadata{MetadataKey: string(stored)}
	}
	metadata := make(message.Metadata, len(fields))
	for name, value := range fields {
		var text string
		if json.Unmarshal(value, &text) != nil {
			text = string(value)
		}
		metadata[name] = text
	}
	return metadata
}
