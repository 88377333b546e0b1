package inboxtest

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/internal/dialect"
)

const (
	postgres = dialect.PostgresName
	mysql    = dialect.MySQLName
	sqlite   = dialect.SQLiteName
)

// A statement that begins with WITH writes if a verb says so: literals, names and comments do not.
func TestWhetherAStatementWrites(t *testing.T) {
	for query, c := range map[string]struct {
		on     string
		writes bool
	}{
		`WITH last AS (SELECT op FROM audit) SELECT COUNT(*) FROM last WHERE op = 'DELETE'`:           {sqlite, false},
		`WITH last AS (SELECT 1) SELECT * FROM last WHERE op = 'it''s' OR op = ') DELETE FROM t'`:     {sqlite, false},
		`WITH last AS (SELECT 1) SELECT "delete" FROM last`:                                           {postgres, false},
		"WITH last AS (SELECT 1) SELECT `delete` FROM last":                                           {mysql, false},
		`WITH last AS (SELECT 1) SELECT [delete] FROM last`:                                           {sqlite, false},
		`WITH last AS (SELECT id, insert FROM q) SELECT * FROM last`:                                  {postgres, false},
		"WITH last AS (SELECT 1) SELECT * FROM last -- (DELETE FROM t)":                               {postgres, false},
		"WITH last AS (SELECT 1) SELECT * FROM last # (DELETE FROM t)":                                {mysql, false},
		`WITH last AS (SELECT 1) /* (DELETE FROM t) */ SELECT * FROM last`:                            {postgres, false},
		`WITH last AS (SELECT $$ (DELETE FROM t) $$) SELECT * FROM last`:                              {postgres, false},
		`WITH last AS (SELECT $q$ $$ (DELETE FROM t) $q$) SELECT * FROM last`:                         {postgres, false},
		`WITH last AS (SELECT 'it\'s (DELETE FROM t)') SELECT * FROM last`:                            {mysql, false},
		`WITH last AS (SELECT E'it\'s (DELETE FROM t)') SELECT * FROM last`:                           {postgres, false},
		`WITH last AS (SELECT insert(a, 1, 1, replace(b, 'c', 'd')) FROM t) SELECT * FROM last`:       {mysql, false},
		`WITH last AS (SELECT id FROM q FOR UPDATE SKIP LOCKED) SELECT * FROM last FOR UPDATE OF a`:   {postgres, false},
		`WITH last AS (SELECT id FROM q FOR NO KEY UPDATE) SELECT * FROM last`:                        {postgres, false},
		`WITH last AS (SELECT '\') INSERT INTO audit SELECT * FROM last`:                              {postgres, true},
		`WITH last AS (SELECT '\') INSERT INTO audit SELECT * FROM last -- '`:                         {sqlite, true},
		`WITH last AS (SELECT a #>> '{b}' FROM t) INSERT INTO audit SELECT * FROM last`:               {postgres, true},
		`WITH last AS (SELECT ARRAY['a]'] FROM t) INSERT INTO audit SELECT * FROM last`:               {postgres, true},
		`WITH last AS (SELECT $1 || '$1') INSERT INTO audit SELECT * FROM last WHERE a = '$1'`:        {postgres, true},
		`WITH gone AS NOT MATERIALIZED ( /* old */ DELETE FROM audit RETURNING *) SELECT * FROM gone`: {postgres, true},
		"WITH last AS (SELECT 1)\n-- then\nUPDATE\taudit SET op = ''":                                 {postgres, true},
		`WITH last AS (SELECT 1) SELECT * FROM last; DELETE FROM audit`:                               {postgres, true},
		`WITH last AS (SELECT 1) REPLACE INTO audit SELECT * FROM last`:                               {sqlite, true},
		`WITH last AS (SELECT 1) MERGE INTO audit USING last ON TRUE WHEN MATCHED THEN DELETE`:        {postgres, true},
	} {
		assert.Equal(t, c.writes, read(c.on, query).writes, "%s: %s", c.on, query)
	}
}
