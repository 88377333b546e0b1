package watermillsql

import (
	"fmt"

	wmsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"

	"github.com/millrace-go/millrace/internal/dialect"
)

// The tables are watermill-sql's, with two wider columns: a payload of any bytes, and a
// UUID of any length that an inbox takes.
var postgres = database{
	name:    dialect.PostgresName,
	quote:   `"`,
	maxName: 63,
	lock:    `SELECT pg_advisory_xact_lock(7310868729157478764)`,
	createMessages: `CREATE TABLE IF NOT EXISTS %s (
	"offset" BIGSERIAL,
	"uuid" VARCHAR(255) NOT NULL,
	"created_at" TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
	"payload" BYTEA DEFAULT NULL,
	"metadata" JSON DEFAULT NULL,
	"transaction_id" XID8 NOT NULL,
	PRIMARY KEY ("transaction_id", "offset")
)`,
	createOffsets: `CREATE TABLE IF NOT EXISTS %s (
	consumer_group VARCHAR(255) NOT NULL,
	offset_acked BIGINT,
	last_processed_transaction_id XID8 NOT NULL,
	PRIMARY KEY (consumer_group)
)`,
	insert: `INSERT INTO %s (uuid, payload, metadata, transaction_id) VALUES `,
	row:    `($%d, $%d, $%d, pg_current_xact_id())`,
	columns: `SELECT attname, format_type(atttypid, NULL),
	CASE WHEN atttypmod > 4 THEN atttypmod - 4 ELSE 0 END
FROM pg_attribute
WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped`,
	messageColumns: []string{"offset", "uuid", "payload", "metadata", "transaction_id"},
	offsetColumns:  []string{"consumer_group", "offset_acked", "last_processed_transaction_id"},
	binary:         []string{"bytea"},
	json:           []string{"json", "jsonb"},
	blob:           `BYTEA USING convert_to(payload::text, 'UTF8')`,
	varchar:        `VARCHAR(255)`,
	widen:          `ALTER TABLE %s ALTER COLUMN %s TYPE %s`,

	schema: func(batch int) wmsql.SchemaAdapter {
		return postgresSchema{wmsql.DefaultPostgreSQLSchema{SubscribeBatchSize: batch}}
	},
	offsetAdapter: wmsql.DefaultPostgreSQLOffsetsAdapter{},
}

type postgresSchema struct{ wmsql.DefaultPostgreSQLSchema }

// SelectQuery selects the rows that watermill-sql selects, in its order. For each batch its own
// statement sorts everything that is not yet consumed; this one reads the batch from the primary
// key.
func (s postgresSchema) SelectQuery(topic, group string, offsets wmsql.OffsetsAdapter) wmsql.Query {
	next := offsets.NextOffsetQuery(topic, group)
	return wmsql.Query{Query: fmt.Sprintf(`WITH last AS (%s)
SELECT "offset", transaction_id, uuid, payload, metadata
FROM %s
WHERE (transaction_id, "offset") > (
	(SELECT last_processed_transaction_id FROM last),
	(SELECT offset_acked FROM last)
)
AND transaction_id < pg_snapshot_xmin(pg_current_snapshot())
ORDER BY transaction_id, "offset"
LIMIT %d`, next.Query, s.MessagesTable(topic), s.SubscribeBatchSize), Args: next.Args}
}

// UnmarshalMessage reads a row of SelectQuery. watermill-sql's table of offsets wants the id of the
// row's transaction back.
func (postgresSchema) UnmarshalMessage(row wmsql.Scanner) (wmsql.Row, error) {
	var r wmsql.Row
	var transaction int64
	err := row.Scan(&r.Offset, &transaction, &r.UUID, &r.Payload, &r.Metadata)
	r.ExtraData = map[string]any{"transaction_id": transaction}
	return received(r, err)
}
