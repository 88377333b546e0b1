package bench_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/tests/testdb"
)

// BenchmarkBytes is the size of a claim, table and index, against a table with text keys
// that says the same. Random UUIDs, in random order, into the index as it stands.
func BenchmarkBytes(b *testing.B) {
	for _, d := range []struct {
		name   string
		tables map[string]string
		size   func(b *testing.B, db *testdb.DB, table string) int64
	}{
		{dialect.PostgresName, postgresTables, postgresSize},
		{dialect.MySQLName, mysqlTables, mysqlSize},
		{dialect.SQLiteName, sqliteTables, sqliteSize},
	} {
		b.Run(d.name, func(b *testing.B) {
			db := testdb.On(b, d.name, testdb.Pool(1))
			require.NoError(b, newStore(b, db).Migrate(b.Context()))
			rows := pick(1_000_000, 5_000)
			if d.name != dialect.PostgresName {
				rows = min(rows, 400_000)
			}
			size := map[string]float64{}
			for _, table := range []string{"millrace_claims", "bench_same", "bench_least"} {
				before := d.size(b, db, table)
				run(b, db, fmt.Sprintf(d.tables[table], rows))
				size[table] = float64(d.size(b, db, table)-before) / float64(rows)
			}
			name := "bytes/" + d.name
			atMost(name, 0.7).judge(b, []float64{size["millrace_claims"] / size["bench_same"]},
				"bytes a row, table and index: claims %.0f, the same with text keys %.0f; at %d rows",
				size["millrace_claims"], size["bench_same"], rows)
			tell(fmt.Sprintf("%s-least ratio=%.2f no goal (against consumer, message id and time alone, as text: %.0f)",
				name, size["millrace_claims"]/size["bench_least"], size["bench_least"]))
		})
	}
}
