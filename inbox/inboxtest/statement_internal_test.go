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

// The table of a statement is known however the statement spells and modifies it.
func TestTheTableOfAStatement(t *testing.T) {
	for query, c := range map[string]struct{ on, what string }{
		`INSERT INTO Audit VALUES (1)`:                             {sqlite, "INSERT Audit"},
		`INSERT audit SELECT * FROM other`:                         {mysql, "INSERT audit"},
		`INSERT IGNORE audit VALUES (1)`:                           {mysql, "INSERT audit"},
		`INSERT LOW_PRIORITY IGNORE INTO audit VALUES (1)`:         {mysql, "INSERT audit"},
		`INSERT DELAYED audit VALUES (1)`:                          {mysql, "INSERT audit"},
		`INSERT HIGH_PRIORITY audit VALUES (1)`:                    {mysql, "INSERT audit"},
		`INSERT OR ROLLBACK INTO audit VALUES (1)`:                 {sqlite, "INSERT audit"},
		`INSERT INTO /* here */ audit VALUES (1)`:                  {sqlite, "INSERT audit"},
		"INSERT INTO -- here\n audit VALUES (1)":                   {sqlite, "INSERT audit"},
		`INSERT INTO main . audit VALUES (1)`:                      {sqlite, "INSERT main.audit"},
		`INSERT INTO "main"."my ""own"" audit" VALUES (1)`:         {sqlite, `INSERT main.my "own" audit`},
		`INSERT INTO [my audit] VALUES (1)`:                        {sqlite, "INSERT my audit"},
		"INSERT INTO `my audit` VALUES (1)":                        {mysql, "INSERT my audit"},
		`INSERT INTO büro VALUES (1)`:                              {postgres, "INSERT büro"},
		`INSERT INTO audit$log VALUES (1)`:                         {postgres, "INSERT audit$log"},
		`INSERT INTO temp (a) VALUES (1)`:                          {mysql, "INSERT temp"},
		`REPLACE audit VALUES (1)`:                                 {mysql, "REPLACE audit"},
		`REPLACE INTO audit VALUES (1)`:                            {sqlite, "REPLACE audit"},
		`UPDATE OR IGNORE audit SET op = 1`:                        {sqlite, "UPDATE audit"},
		`UPDATE OR REPLACE audit SET op = 1`:                       {sqlite, "UPDATE audit"},
		`UPDATE LOW_PRIORITY IGNORE audit SET op = 1`:              {mysql, "UPDATE audit"},
		`UPDATE ONLY audit SET op = 1`:                             {postgres, "UPDATE audit"},
		`DELETE QUICK FROM audit`:                                  {mysql, "DELETE audit"},
		`DELETE a FROM audit a JOIN other`:                         {mysql, "DELETE audit"},
		`DELETE FROM ONLY audit`:                                   {postgres, "DELETE audit"},
		`TRUNCATE audit`:                                           {postgres, "TRUNCATE audit"},
		`TRUNCATE TABLE IF EXISTS ONLY audit`:                      {postgres, "TRUNCATE audit"},
		`MERGE INTO audit USING other ON TRUE`:                     {postgres, "MERGE audit"},
		`CREATE TEMP TABLE IF NOT EXISTS audit (op TEXT)`:          {sqlite, "CREATE audit"},
		`DROP TABLE IF EXISTS audit`:                               {sqlite, "DROP audit"},
		`ALTER TABLE IF EXISTS ONLY audit ADD op TEXT`:             {postgres, "ALTER audit"},
		`SELECT a FROM delayed d JOIN other FOR UPDATE`:            {postgres, "SELECT delayed"},
		`SELECT 'INTO other' FROM audit`:                           {sqlite, "SELECT audit"},
		`WITH a AS (SELECT * FROM b) INSERT INTO audit VALUES (1)`: {sqlite, "WITH audit"},
		`-- only a comment`:                                        {sqlite, ""},
	} {
		assert.Equal(t, c.what, read(c.on, query).what, "%s: %s", c.on, query)
	}
}

// A table of Scenario.Outside is known with its schema and without, in any case.
func TestTheTablesOutside(t *testing.T) {
	for _, query := range []string{`INSERT INTO Main."My Audit" VALUES (1)`, `UPDATE "my audit" SET op = 1`} {
		assert.True(t, read(sqlite, query).of([]string{"other", "my AUDIT"}), query)
		assert.False(t, read(sqlite, query).of([]string{"audit", "my"}), query)
	}
	assert.True(t, read(sqlite, `INSERT INTO MAIN . AUDIT VALUES (1)`).of([]string{"main.audit"}))
	assert.True(t, read(postgres, `INSERT INTO BÜRO VALUES (1)`).of([]string{"büro"}))
}
