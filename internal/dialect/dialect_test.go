package dialect_test

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/dialect"
)

var names = []string{dialect.PostgresName, dialect.MySQLName, dialect.SQLiteName}

func of(t *testing.T, name string) *dialect.Dialect {
	t.Helper()
	d := dialect.For(name, dialect.Names{Prefix: dialect.DefaultPrefix})
	require.NotNil(t, d)
	return d
}

// fields are the statements by their names, those of a group as Group.Name.
func fields(d *dialect.Dialect) map[string]string {
	all := make(map[string]string)
	v := reflect.ValueOf(d).Elem()
	for i := range v.NumField() {
		switch f := v.Type().Field(i); {
		case !f.IsExported():
		case f.Type.Kind() == reflect.String:
			all[f.Name] = v.Field(i).String()
		case f.Type.Kind() == reflect.Struct:
			for j := range f.Type.NumField() {
				if one := v.Field(i).Field(j); one.Kind() == reflect.String {
					all[f.Name+"."+f.Type.Field(j).Name] = one.String()
				}
			}
		}
	}
	return all
}

func TestNoStatementIsEmpty(t *testing.T) {
	for _, name := range names {
		d := of(t, name)
		assert.NotZero(t, d.BindType)
		for field, statement := range fields(d) {
			owner := map[string]string{
				"Gate.ClaimAndAdvance": dialect.PostgresName, "SelectHidden": dialect.PostgresName, "SelectLacking": dialect.PostgresName,
				"Outbox.SelectShortKeys": dialect.MySQLName,
			}[field]
			if owner != "" && name != owner {
				assert.Empty(t, statement, name)
				continue
			}
			assert.NotEmpty(t, strings.TrimSpace(statement), "%s: %s", name, field)
		}
		assert.NotZero(t, d.Version())
	}
	assert.Nil(t, dialect.For("oracle", dialect.Names{}))
}

var numbered = regexp.MustCompile(`[$?](\d+)`)

func TestStatementsTakeTheSameArguments(t *testing.T) {
	arguments := func(statement string) int {
		most := 0
		found := numbered.FindAllStringSubmatch(statement, -1)
		if len(found) == 0 {
			return strings.Count(statement, "?")
		}
		for _, m := range found {
			n, err := strconv.Atoi(m[1])
			require.NoError(t, err)
			most = max(most, n)
		}
		return most
	}
	wanted := fields(of(t, dialect.PostgresName))
	own := []string{"LockMigrations", "Outbox.SelectKey", "Gate.ClaimAndAdvance", "Outbox.SelectShortKeys"} // Keys makes the arguments of the second
	for _, name := range names[1:] {
		for field, statement := range fields(of(t, name)) {
			if !slices.Contains(own, field) {
				assert.Equal(t, arguments(wanted[field]), arguments(statement), "%s: %s", name, field)
			}
		}
	}
}

// A shared statement is written for no database: nothing of that may reach one.
func TestSharedStatementsAreMadeTheDatabasesOwn(t *testing.T) {
	alien := map[string]*regexp.Regexp{
		dialect.PostgresName: regexp.MustCompile(`\?`),
		dialect.MySQLName:    regexp.MustCompile(`\?\d|\$\d`), // it has no numbers
		dialect.SQLiteName:   regexp.MustCompile(`\$\d`),
	}
	literal := regexp.MustCompile(`'[^']*'`)
	argument := regexp.MustCompile(`[?]|\$\d`)
	for _, name := range names {
		for field, statement := range fields(of(t, name)) {
			assert.NotContains(t, statement, "{", "%s: %s", name, field)
			if strings.Contains(statement, "IN (?)") { // In writes all its arguments
				assert.NotRegexp(t, numbered, statement, "%s: %s", name, field)
			} else {
				assert.NotRegexp(t, alien[name], statement, "%s: %s", name, field)
			}
			for _, text := range literal.FindAllString(statement, -1) {
				assert.NotRegexp(t, argument, text, "%s: %s: text is no argument", name, field)
			}
		}
	}
}

func TestSchemasHaveTheSameTablesAndColumns(t *testing.T) {
	tables := func(name string) map[string][]string {
		all := make(map[string][]string)
		for _, table := range of(t, name).Tables() {
			assert.NotEmpty(t, table.Columns)
			all[table.Name] = slices.Sorted(slices.Values(table.Columns))
		}
		return all
	}
	wanted := tables(dialect.PostgresName)
	assert.Len(t, wanted, 22)
	for _, name := range names[1:] {
		assert.Equal(t, wanted, tables(name), name)
	}
}

func TestNamesReachEveryStatement(t *testing.T) {
	for _, name := range names {
		schema := ""
		if name == dialect.PostgresName {
			schema = "billing"
		}
		d := dialect.For(name, dialect.Names{Schema: schema, Prefix: "mr_"})
		for field, statement := range fields(d) {
			assert.NotContains(t, statement, "millrace_", "%s: %s", name, field)
			assert.NotContains(t, statement, "{", "%s: %s", name, field)
		}
		assert.NotContains(t, d.Schema(), "CREATE TABLE millrace_")
		assert.NotContains(t, d.Schema(), "ix_millrace_")
		if schema != "" {
			assert.Contains(t, d.Claim, `"billing".mr_claims`)
		}
		assert.Equal(t, "mr_claims", d.Tables()[2].Name)
	}
}

// Scripts are split where a line ends with a semicolon, by us and by other tools.
func TestCommentsOfTheSchemaEndNoStatement(t *testing.T) {
	for _, name := range names {
		for line := range strings.SplitSeq(of(t, name).Schema(), "\n") {
			_, comment, _ := strings.Cut(line, "--")
			assert.False(t, strings.HasSuffix(comment, ";"), "%s: %s", name, line)
		}
	}
}

// These are all that a driver says of a COMMIT that the server answered with ROLLBACK.
func TestAbortedKnowsTheWordsOfEachRelease(t *testing.T) {
	for _, words := range []string{
		"commit unexpectedly resulted in rollback",                 // pgx
		"pq: Could not complete operation in a failed transaction", // lib/pq 1.10
		"pq: could not complete operation in a failed transaction", // lib/pq 1.12
	} {
		assert.ErrorIs(t, dialect.Unhide(fmt.Errorf("commit: %w", errors.New(words))), dialect.ErrHidden, words)
	}
	assert.NotErrorIs(t, dialect.Unhide(errors.New("boom")), dialect.ErrHidden)
}

// Drivers and servers keep every text.
func TestFewTextsStoreAnyNumberOfRows(t *testing.T) {
	texts := map[string]bool{}
	for n := 1; n <= 1000; n++ {
		statements := 0
		for rest := n; rest > 0; statements++ {
			some := dialect.AtOnce(rest)
			texts[dialect.InsertMany(`INSERT INTO t (c) VALUES (?)`, some)] = true
			rest -= some
		}
		most := 1 // what a batch stores takes no savepoint
		if n > 500 {
			most = 2
		}
		require.LessOrEqual(t, statements, most, n)
	}
	assert.Len(t, texts, 505)
}
