package outbox_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/testdb"
)

// columnBodies: what others read in the table.
var columnBodies = []testdb.Body{
	{Name: "columns for Debezium", Why: "its outbox event router reads the table as it is", Run: debezium},
	{Name: "metadata and columns", Why: "what a message brings along cannot forge what is stored about it", Run: func(t *testing.T, db *testdb.DB) {
		all := []string{
			"id", "key_hash", "created_at", "due_at", "sent_at", "blocked_key", "attempts", "status", "topic", "order_key",
			"uuid", "event_type", "metadata", "payload", "last_error", "cause",
		}
		row := func(o *office, m *message.Message) map[string]any {
			o.Helper()
			o.clear()
			require.NoError(o, o.out.Publish("orders", m))
			row := make(map[string]any)
			require.NoError(o, o.db.QueryRowxContext(o.Context(), `SELECT * FROM millrace_outbox`).MapScan(row))
			delete(row, "order_hash") // MySQL's, of others
			assert.Len(o, row, len(all), "all columns are tried")
			delete(row, "id")
			delete(row, "created_at")
			return row
		}
		plain := func() *message.Message {
			m := message.NewMessage("u", []byte("p"))
			m.Metadata = message.Metadata{"key": "k", "name": "OrderPlaced"}
			return m
		}
		newOffice(t, db, standalone).each(
			behaviour{"that are named alike have nothing to do with each other", func(o *office) {
				want, m := row(o, plain()), plain()
				for _, name := range all {
					m.Metadata.Set(name, "4")
				}
				got := row(o, m)
				delete(want, "metadata")
				delete(got, "metadata")
				assert.Equal(o, want, got)
				assert.Equal(o, m.Metadata, o.relayed(1)[0].Metadata, "and are sent")
				assert.Equal(o, []string{"orders"}, o.broker.topics)
			}},
			behaviour{"of deliveries are not stored", func(o *office) {
				want, m := row(o, plain()), plain()
				for _, name := range all {
					m.Metadata.Set("_millrace_"+name, "4")
				}
				assert.Equal(o, want, row(o, m))
				assert.Len(o, m.Metadata, len(all)+2, "the caller's message stays as it is")
			}},
			behaviour{"give the event type", func(o *office) {
				typed := func(out *outbox.Publisher, md message.Metadata) any {
					o.clear()
					m := message.NewMessage("u", nil)
					m.Metadata = md
					require.NoError(o, out.Publish("orders", m))
					return o.captured().headers["name"]
				}
				assert.Nil(o, typed(o.out, nil))
				assert.Nil(o, typed(o.out, message.Metadata{"type": "x"}))
				assert.Equal(o, "com.example.Placed", typed(o.out, message.Metadata{"ce_type": "com.example.Placed"}))
				assert.Equal(o, "Placed", typed(o.out, message.Metadata{"ce_type": "com.example.Placed", "name": "Placed"}))
				own := o.publisher(standalone, func(c *outbox.Config) {
					c.Describe = func(m *message.Message) string { return m.UUID + "!" }
				})
				assert.Equal(o, "u!", typed(own, message.Metadata{"name": "Placed"}))
			}},
		)
	}},
}

// router is the configuration of io.debezium.transforms.outbox.EventRouter, and reads a row
// as that does.
type router map[string]string

// documentedRouter is the configuration that docs/outbox.md gives.
func documentedRouter(t testing.TB) router {
	t.Helper()
	text, err := os.ReadFile("../../docs/outbox.md")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(text), "```properties\n")
	require.True(t, found)
	block, _, _ := strings.Cut(rest, "```")
	run, err := os.ReadFile("../interop/testdata/debezium.properties") // TestClusterDebezium
	require.NoError(t, err)
	require.Equal(t, string(run), block, "docs/outbox.md shows what Debezium was run with")
	r := make(router)
	for line := range strings.Lines(block) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		r[strings.TrimPrefix(name, "transforms.outbox.")] = value
	}
	require.Equal(t, "io.debezium.transforms.outbox.EventRouter", r["type"])
	return r
}

// event is what Debezium sends to a broker. What is nil in the table is nil there.
type event struct {
	topic   string
	key     any
	headers map[string]any
	payload any
}

func (r router) event(row map[string]any) event {
	e := event{
		topic:   strings.ReplaceAll(r["route.topic.replacement"], "${routedByValue}", row[r["route.by.field"]].(string)),
		key:     row[r["table.field.event.key"]],
		headers: map[string]any{"id": row[r["table.field.event.id"]]},
		payload: row[r["table.field.event.payload"]],
	}
	for placement := range strings.SplitSeq(r["table.fields.additional.placement"], ",") {
		if parts := strings.Split(placement, ":"); len(parts) == 3 && parts[1] == "header" {
			e.headers[parts[2]] = row[parts[0]]
		}
	}
	return e
}

// columns are those of the contract, as the catalogue describes them.
var columns = map[string]struct {
	query string
	types map[string]string
}{
	"postgres": {
		`SELECT column_name, data_type || ' ' || is_nullable FROM information_schema.columns
			WHERE table_name = 'millrace_outbox'`,
		map[string]string{
			"id": "bigint NO", "topic": "text NO", "order_key": "text YES", "uuid": "text NO", "event_type": "text YES",
			"metadata": "text YES", "payload": "bytea YES", "created_at": "bigint NO",
		},
	},
	"mysql": {
		`SELECT column_name, CONCAT(data_type, ' ', is_nullable) FROM information_schema.columns
			WHERE table_schema = DATABASE() AND table_name = 'millrace_outbox'`,
		map[string]string{
			"id": "bigint NO", "topic": "text NO", "order_key": "text YES", "uuid": "text NO", "event_type": "text YES",
			"metadata": "longtext YES", "payload": "longblob YES", "created_at": "bigint NO",
		},
	},
	"sqlite": {
		`SELECT name, type || CASE "notnull" WHEN 1 THEN ' NO' ELSE ' YES' END FROM pragma_table_info('millrace_outbox')`,
		map[string]string{
			"id": "INTEGER NO", "topic": "TEXT NO", "order_key": "TEXT YES", "uuid": "TEXT NO", "event_type": "TEXT YES",
			"metadata": "TEXT YES", "payload": "BLOB YES", "created_at": "INTEGER NO",
		},
	},
}

func debezium(t *testing.T, db *testdb.DB) {
	newOffice(t, db, standalone).each(
		behaviour{"have the types of the contract", func(o *office) {
			rows, err := o.db.QueryContext(o.Context(), columns[o.db.Dialect].query)
			require.NoError(o, err)
			defer rows.Close() //nolint:errcheck // rows.Err tells
			types := make(map[string]string)
			for rows.Next() {
				var name, kind string
				require.NoError(o, rows.Scan(&name, &kind))
				types[name] = kind
			}
			require.NoError(o, rows.Err())
			assert.Subset(o, types, columns[o.db.Dialect].types)
		}},
		behaviour{"are an event as it was published", func(o *office) {
			m := message.NewMessage("1b9d6bcd", everyByte())
			m.Metadata = message.Metadata{"key": "order 7", "name": "OrderPlaced", "correlation_id": "ä🧾"}
			require.NoError(o, o.out.Publish("shop.orders", m))
			e := o.captured()
			assert.Equal(o, "shop.orders", e.topic)
			assert.Equal(o, "order 7", e.key)
			assert.Equal(o, everyByte(), e.payload)
			assert.Equal(o, "1b9d6bcd", e.headers["id"])
			assert.Equal(o, "1b9d6bcd", e.headers["_watermill_message_uuid"], "watermill-kafka looks for it there")
			assert.Equal(o, "OrderPlaced", e.headers["name"])
			var metadata message.Metadata
			require.NoError(o, json.Unmarshal([]byte(e.headers["metadata"].(string)), &metadata))
			assert.Equal(o, m.Metadata, metadata)
		}},
		behaviour{"are NULL for what a message does not have", func(o *office) {
			m := message.NewMessage("u", nil)
			m.Metadata = nil
			require.NoError(o, o.out.Publish("orders", m))
			assert.Equal(o, event{topic: "orders", headers: map[string]any{
				"id": "u", "_watermill_message_uuid": "u", "name": nil, "metadata": nil,
			}}, o.captured())
		}},
	)
}

// captured is the only row, as change data capture sees it.
func (o *office) captured() event {
	o.Helper()
	row := make(map[string]any)
	require.NoError(o, o.db.QueryRowxContext(o.Context(), `SELECT * FROM millrace_outbox`).MapScan(row))
	for name, value := range row {
		if text, isBytes := value.([]byte); isBytes && name != "payload" { // the driver's way
			row[name] = string(text)
		}
	}
	return documentedRouter(o).event(row)
}
