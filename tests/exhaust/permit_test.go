package exhaust_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/url"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox/inboxtest"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestADatabaseOfProductionIsUntouched plays where the name does not say test: the kit would
// drop all tables.
func TestADatabaseOfProductionIsUntouched(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"shop", "latest_orders", "Contest2024"} {
		testdb.Some(t, 1, func(t *testing.T, db *testdb.DB) {
			at, rows := production(t, db, name)
			said := refused(t, at)
			assert.Contains(t, said, "the name must contain the word test")
			assert.Contains(t, strings.ToLower(said), strings.ToLower(name))
			assert.Contains(t, said, "Database.DropAll")
			assert.Equal(t, 3, rows())
		})
	}
}

// TestADatabaseOfTestsIsPlayedOn tells by the words of the name, or is told.
func TestADatabaseOfTestsIsPlayedOn(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"shop_test", "ShopTest", "shop"} {
		testdb.Some(t, 1, func(t *testing.T, db *testdb.DB) {
			if name == "ShopTest" && db.Dialect != "sqlite" {
				name = "shop_testing" // servers may fold capitals
			}
			at, _ := production(t, db, name)
			at.DropAll = name == "shop"
			s := services["Inbox"].scenario()
			s.Databases = []inboxtest.Database{at}
			inboxtest.Duplicate(t, s)
		})
	}
}

// TestASchemaOfTestsIsPlayedOn: nothing outside of PostgreSQL's current schema is dropped.
func TestASchemaOfTestsIsPlayedOn(t *testing.T) {
	t.Parallel()
	at, rows := production(t, testdb.On(t, "postgres"), "shop")
	pool := (&testdb.DB{Dialect: "postgres", Driver: at.Driver, DSN: at.DSN}).Open(t)
	_, err := pool.ExecContext(t.Context(), `CREATE SCHEMA tests_of_shop`)
	require.NoError(t, err)
	at.DSN += "&search_path=tests_of_shop"
	s := services["Inbox"].scenario()
	s.Databases = []inboxtest.Database{at}
	inboxtest.Duplicate(t, s)
	assert.Equal(t, 3, rows())
}

func TestADatabaseMustBeNamed(t *testing.T) {
	t.Parallel()
	config, err := mysql.ParseDSN(testdb.On(t, "mysql").DSN)
	require.NoError(t, err)
	config.DBName = ""
	assert.Contains(t, refused(t, inboxtest.Database{Driver: "mysql", DSN: config.FormatDSN()}), "names no database")
}

// production makes a database with three orders in it whose name begins so, beside db.
func production(t *testing.T, db *testdb.DB, name string) (at inboxtest.Database, rows func() int) {
	t.Helper()
	at = inboxtest.Database{Driver: db.Driver}
	own := name + "_" + strings.ToLower(rand.Text()[:10])
	switch db.Dialect {
	case "sqlite":
		file := url.URL{Path: filepath.Join(t.TempDir(), name+".db")} // a subtest's folder may have a # in it
		at.DSN = "file:" + file.EscapedPath() + "?_txlock=immediate&_pragma=journal_mode(WAL)&_pragma=busy_timeout(10000)"
	case "mysql":
		create(t, db, "`"+own+"`")
		config, err := mysql.ParseDSN(db.DSN)
		require.NoError(t, err)
		config.DBName = own
		at.DSN = config.FormatDSN()
	default:
		create(t, db, `"`+own+`"`)
		u, err := url.Parse(db.DSN)
		require.NoError(t, err)
		u.Path = "/" + own
		at.DSN = u.String()
	}
	pool := (&testdb.DB{Dialect: db.Dialect, Driver: at.Driver, DSN: at.DSN}).Open(t)
	for _, ddl := range []string{`CREATE TABLE orders (id INTEGER PRIMARY KEY)`, `INSERT INTO orders (id) VALUES (1), (2), (3)`} {
		_, err := pool.ExecContext(t.Context(), ddl)
		require.NoError(t, err)
	}
	return at, func() int {
		var n int
		require.NoError(t, pool.GetContext(t.Context(), &n, `SELECT COUNT(*) FROM orders`))
		return n
	}
}

func create(t *testing.T, db *testdb.DB, name string) {
	t.Helper()
	db.Do(t, `CREATE DATABASE `+name)
	t.Cleanup(func() {
		drop := `DROP DATABASE ` + name
		if db.Dialect == "postgres" {
			drop += ` WITH (FORCE)`
		}
		_, err := db.ExecContext(context.WithoutCancel(t.Context()), drop)
		assert.NoError(t, err)
	})
}

// refused returns what the kit says where it refuses a database.
func refused(t *testing.T, at inboxtest.Database) string {
	t.Helper()
	said := &told{TB: t}
	s := services["Inbox"].scenario()
	s.Databases = []inboxtest.Database{at}
	done := make(chan struct{})
	go func() {
		defer close(done)
		inboxtest.Duplicate(said, s)
	}()
	<-done
	return said.text
}

// told is a test that is to fail.
type told struct {
	testing.TB
	text string
}

func (f *told) Helper() {}

func (f *told) Errorf(format string, args ...any) { f.text += fmt.Sprintf(format, args...) }

func (f *told) Fatalf(format string, args ...any) {
	f.Errorf(format, args...)
	runtime.Goexit()
}
