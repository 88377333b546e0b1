package tests_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/testdb"
)

// TestADatabaseThatAnswersIsReached: exit code 4 is for one that does not. What else is wrong has code 1, and a text of its own.
func TestADatabaseThatAnswersIsReached(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		dialect string
		dsn     func(*shop) string
		says    []string
	}{
		"postgres, a right is missing": {"postgres", postgresReader, []string{"the role lacks a right", "permission denied for table millrace_"}},
		"mysql, a right is missing":    {"mysql", mysqlReader, []string{"the role lacks a right", "UPDATE command denied"}},
		"sqlite, no room":              {"sqlite", fullFile, []string{"the database has no room", "full"}},
		"postgres, read-only":          {"postgres", readOnly, []string{"the database is read-only"}},
		"mysql, read-only":             {"mysql", readOnly, []string{"the database is read-only"}},
		"sqlite, read-only":            {"sqlite", readOnly, []string{"the database is read-only"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t, testdb.On(t, c.dialect))
			r := call(t, c.dsn(s), "pause", "billing", "--reason", strings.Repeat("the bank is down. ", 5000), "--yes")
			assert.Equal(t, 1, r.code, r.err)
			for _, text := range append(c.says, "millrace: ") {
				assert.Contains(t, r.err, text)
			}
			assert.NotContains(t, r.err, "does not answer")
			assert.NotContains(t, r.err, "Does the DSN", "the hint of exit code 4")
		})
	}
}

// TestAWrongCursorIsAWrongCall: no list has ended with it.
func TestAWrongCursorIsAWrongCall(t *testing.T) {
	t.Parallel()
	s := newShop(t, testdb.On(t, "sqlite"))
	for _, list := range []string{"waiting", "processes"} {
		r := s.run(list, "--after", "nonsense")
		assert.Equal(t, 2, r.code, r.out)
		assert.Contains(t, r.err, "the cursor is not one of", list)
	}
}

// TestTimesAreByTheDatabasesClock: ages, and times so long ago.
func TestTimesAreByTheDatabasesClock(t *testing.T) {
	t.Parallel()
	s := newShop(t, testdb.On(t, "mysql"))
	ahead := s.db.Open(t, testdb.Params("timestamp", strconv.FormatInt(time.Now().Add(5*day).Unix(), 10))).DSN
	list := func(more ...string) result {
		return call(t, ahead, append([]string{"list", "--status", "parked"}, more...)...)
	}
	assert.Contains(t, list().out, "  7d  ")
	assert.Contains(t, list("--since", "180h").out, "  7d  ")
	assert.Contains(t, list("--since", "150h").out, "No open message matches.")
	assert.Contains(t, call(t, ahead, "retry", "--all-matching", "--until", "150h").out, "  7d  ")
	assert.Equal(t, 3, call(t, ahead, "retry", "--all-matching", "--until", "180h").code)
	r := call(t, ahead, "audit", "prune", "--before", time.Now().Add(3*day).Format(time.DateOnly), "--reason", "x", "--yes")
	assert.Zero(t, r.code, "by that clock it is past: %s", r.err)
}

func readOnly(s *shop) string { return s.db.ReadOnly(s).DSN }

// fullFile names a file that may not grow.
func fullFile(s *shop) string {
	pages := s.count(`SELECT page_count FROM pragma_page_count()`)
	return s.db.Open(s, testdb.Params("_pragma", fmt.Sprintf("max_page_count(%d)", pages))).DSN
}

// postgresReader connects as a role that may only read.
func postgresReader(s *shop) string {
	role := s.db.Role(s)
	s.exec(`GRANT SELECT ON ALL TABLES IN SCHEMA public TO "` + role + `"`)
	return s.db.Open(s, testdb.Params("role", role)).DSN
}

// mysqlReader connects as a user who may only read.
func mysqlReader(s *shop) string {
	c, err := mysql.ParseDSN(s.db.DSN)
	require.NoError(s, err)
	c.User, c.Passwd = "r"+c.DBName[len(c.DBName)-10:], "secret"
	s.exec(`CREATE USER ` + c.User + ` IDENTIFIED BY 'secret'`)
	s.Cleanup(func() {
		_, err := s.db.ExecContext(context.WithoutCancel(s.Context()), `DROP USER `+c.User)
		assert.NoError(s, err)
	})
	s.exec(`GRANT SELECT ON ` + c.DBName + `.* TO ` + c.User)
	return c.FormatDSN()
}
