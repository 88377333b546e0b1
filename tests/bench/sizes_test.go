package bench_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/testdb"
)

// Statements that fill the tables; %d is how many rows.

var postgresTables = map[string]string{
	"millrace_claims": `
		INSERT INTO millrace_claims (consumer, message_id, payload_hash, token, result, processed_at)
		SELECT 7, '\x01'::BYTEA || uuid_send(gen_random_uuid()), i, i, 1, 1700000000000000 + i
		FROM generate_series(1, %d) i`,
	"bench_same": `
		INSERT INTO bench_same
		SELECT 'billing', gen_random_uuid()::TEXT, i, i, 1, now()
		FROM generate_series(1, %d) i`,
	"bench_least": `
		INSERT INTO bench_least
		SELECT 'billing', gen_random_uuid()::TEXT, now()
		FROM generate_series(1, %d) i`,
}

func postgresSize(b *testing.B, db *testdb.DB, table string) (bytes int64) {
	b.Helper()
	run(b, db,
		`CREATE TABLE IF NOT EXISTS bench_same (consumer TEXT, message_id TEXT, payload_hash BIGINT, token BIGINT,
			result SMALLINT, processed_at TIMESTAMPTZ, PRIMARY KEY (consumer, message_id))`,
		`CREATE TABLE IF NOT EXISTS bench_least (consumer TEXT, message_id TEXT, processed_at TIMESTAMPTZ,
			PRIMARY KEY (consumer, message_id))`)
	require.NoError(b, db.GetContext(b.Context(), &bytes, `SELECT pg_total_relation_size($1::REGCLASS)`, table))
	return bytes
}

// A UUID of version 4 from RANDOM_BYTES, which MariaDB's own UUID is not.
var mysqlTables = map[string]string{
	"millrace_claims": `
		INSERT INTO millrace_claims (consumer, message_id, payload_hash, token, result, processed_at)
		SELECT 7, CONCAT(X'01', RANDOM_BYTES(16)), seq, seq, 1, 1700000000000000 + seq
		FROM seq_1_to_%d`,
	"bench_same": `
		INSERT INTO bench_same
		SELECT 'billing', INSERT(INSERT(INSERT(INSERT(LOWER(HEX(RANDOM_BYTES(16))), 9, 0, '-'), 14, 0, '-'), 19, 0, '-'),
			24, 0, '-'), seq, seq, 1, NOW(6)
		FROM seq_1_to_%d`,
	"bench_least": `
		INSERT INTO bench_least
		SELECT 'billing', INSERT(INSERT(INSERT(INSERT(LOWER(HEX(RANDOM_BYTES(16))), 9, 0, '-'), 14, 0, '-'), 19, 0, '-'),
			24, 0, '-'), NOW(6)
		FROM seq_1_to_%d`,
}

func mysqlSize(b *testing.B, db *testdb.DB, table string) (bytes int64) {
	b.Helper()
	run(b, db,
		`CREATE TABLE IF NOT EXISTS bench_same (consumer VARCHAR(255), message_id VARCHAR(255), payload_hash BIGINT,
			token BIGINT, result SMALLINT, processed_at TIMESTAMP(6), PRIMARY KEY (consumer, message_id))`,
		`CREATE TABLE IF NOT EXISTS bench_least (consumer VARCHAR(255), message_id VARCHAR(255),
			processed_at TIMESTAMP(6), PRIMARY KEY (consumer, message_id))`)
	require.NoError(b, db.GetContext(b.Context(), &bytes, `
		SELECT FILE_SIZE FROM information_schema.INNODB_SYS_TABLESPACES WHERE NAME = CONCAT(DATABASE(), '/', ?)`, table))
	return bytes
}

const sqliteUUID = `lower(substr(hex(randomblob(4)), 1, 8) || '-' || hex(randomblob(2)) || '-' || hex(randomblob(2)) || '-' ||
			hex(randomblob(2)) || '-' || hex(randomblob(6)))`

var sqliteTables = map[string]string{
	"millrace_claims": `
		WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < %d)
		INSERT INTO millrace_claims (consumer, message_id, payload_hash, token, result, processed_at)
		SELECT 7, CAST(X'01' || randomblob(16) AS BLOB), random(), random(), 1, 1700000000000000 + i FROM s`,
	"bench_same": `
		WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < %d)
		INSERT INTO bench_same
		SELECT 'billing', ` + sqliteUUID + `, random(), random(), 1, strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now') FROM s`,
	"bench_least": `
		WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < %d)
		INSERT INTO bench_least
		SELECT 'billing', ` + sqliteUUID + `, strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now') FROM s`,
}

func sqliteSize(b *testing.B, db *testdb.DB, _ string) (bytes int64) {
	b.Helper()
	run(b, db,
		`CREATE TABLE IF NOT EXISTS bench_same (consumer TEXT, message_id TEXT, payload_hash INTEGER, token INTEGER,
			result INTEGER, processed_at TEXT, PRIMARY KEY (consumer, message_id))`,
		`CREATE TABLE IF NOT EXISTS bench_least (consumer TEXT, message_id TEXT, processed_at TEXT,
			PRIMARY KEY (consumer, message_id))`)
	require.NoError(b, db.GetContext(b.Context(), &bytes,
		`SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()`))
	return bytes
}
