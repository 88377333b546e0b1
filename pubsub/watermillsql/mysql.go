package watermillsql

import (
	wmsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"

	"github.com/millrace-go/millrace/internal/dialect"
)

// publishersGroup has a row in the table of offsets, but is not a group of consumers.
const publishersGroup = "millrace-publishers"

// The tables are watermill-sql's, with two wider columns, as in postgres.go, and with names that
// are compared byte by byte: otherwise two groups whose names differ only in case would be one,
// and each would miss what the other read.
var mysql = database{
	name:    dialect.MySQLName,
	quote:   "`",
	maxName: 64,
	lock:    `DO 0`, // CREATE TABLE IF NOT EXISTS locks the name
	createMessages: "CREATE TABLE IF NOT EXISTS %s (\n" +
		"\t`offset` BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,\n" +
		"\t`uuid` VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,\n" +
		"\t`created_at` TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,\n" +
		"\t`payload` LONGBLOB DEFAULT NULL,\n" +
		"\t`metadata` JSON DEFAULT NULL\n" +
		")",
	createOffsets: "CREATE TABLE IF NOT EXISTS %s (\n" +
		"\tconsumer_group VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,\n" +
		"\toffset_acked BIGINT,\n" +
		"\toffset_consumed BIGINT NOT NULL,\n" +
		"\tPRIMARY KEY (consumer_group)\n" +
		")",
	// watermill-sql adds a group's row with its first message. Until then the group's consumer
	// locks the gap where the row will be, and with it the rows of other groups.
	enrolled: `SELECT consumer_group FROM %s WHERE consumer_group = ?`,
	enroll: `INSERT INTO %s (consumer_group, offset_acked, offset_consumed) VALUES (?, 0, 0)
ON DUPLICATE KEY UPDATE consumer_group = consumer_group`,
	// A row gets its offset before it is in the table. A consumer that finds a later row in between
	// goes past the earlier one and never comes back: so only one publisher may work at a time. It
	// locks the row of a group that no consumer belongs to. It writes to that row, so that the
	// server ends the transaction if the publisher freezes.
	turn: `INSERT INTO %s (consumer_group, offset_acked, offset_consumed)
VALUES ('` + publishersGroup + `', 9223372036854775807, 0)
ON DUPLICATE KEY UPDATE offset_consumed = offset_consumed + 1`,
	insert: `INSERT INTO %s (uuid, payload, metadata) VALUES `,
	row:    `(?, ?, ?)`,
	columns: `SELECT column_name, data_type, COALESCE(character_maximum_length, 0)
FROM information_schema.columns
WHERE table_schema = DATABASE() AND table_name = ?`,
	messageColumns: []string{"offset", "uuid", "payload", "metadata"},
	offsetColumns:  []string{"consumer_group", "offset_acked", "offset_consumed"},
	lowerCase:      `SELECT @@lower_case_table_names`,
	maxPacket:      `SELECT @@max_allowed_packet`,
	binary:         []string{"blob", "mediumblob", "longblob", "tinyblob", "varbinary"},
	padded:         "binary",
	json:           []string{"json"},
	shown:          `SHOW CREATE TABLE %s`,
	blob:           `LONGBLOB`,
	varchar:        `VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL`,
	widen:          `ALTER TABLE %s MODIFY COLUMN %s %s`,

	schema: func(batch int) wmsql.SchemaAdapter {
		return mysqlSchema{wmsql.DefaultMySQLSchema{SubscribeBatchSize: batch}}
	},
	offsetAdapter: wmsql.DefaultMySQLOffsetsAdapter{},
}

type mysqlSchema struct{ wmsql.DefaultMySQLSchema }

// UnmarshalMessage reads a row of SelectQuery.
func (mysqlSchema) UnmarshalMessage(row wmsql.Scanner) (wmsql.Row, error) {
	var r wmsql.Row
	err := row.Scan(&r.Offset, &r.UUID, &r.Payload, &r.Metadata)
	return received(r, err)
}
