package pgxdb_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/tests/testdb"
)

// TestTheExampleOfABatch runs it: it needs a server.
func TestTheExampleOfABatch(t *testing.T) {
	db := testdb.On(t, "postgres")
	db.Do(t, `CREATE TABLE visits (id TEXT PRIMARY KEY, page TEXT)`)
	db.Do(t, `CREATE TABLE pages (page TEXT PRIMARY KEY, visits BIGINT)`)
	t.Setenv("MILLRACE_EXAMPLE_POSTGRES", db.DSN)
	ExampleTx_batch()
	assert.Equal(t, 30, db.Count(t, `SELECT COUNT(*) FROM visits`))
	assert.Equal(t, 3, db.Count(t, `SELECT COUNT(*) FROM pages WHERE visits = 10`))
}
