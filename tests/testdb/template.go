package testdb

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/dialect"
)

// schema is Millrace's, under its usual names.
func schema(name string) *dialect.Dialect { return schemas[name] }

var schemas = func() map[string]*dialect.Dialect {
	all := map[string]*dialect.Dialect{}
	for _, name := range []string{dialect.PostgresName, dialect.MySQLName, dialect.SQLiteName} {
		all[name] = dialect.For(name, dialect.Names{Prefix: dialect.DefaultPrefix})
	}
	return all
}()

// sqliteTemplate is the file of a database with the tables.
var sqliteTemplate = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "millrace-template-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	file := filepath.Join(dir, "template.db")
	pool, err := sqlx.Open("sqlite", "file:"+file+"?_pragma=journal_mode(WAL)&_txlock=immediate")
	if err != nil {
		return nil, err
	}
	err = schema(dialect.SQLiteName).Migrate(context.Background(), pool)
	if err := errors.Join(err, pool.Close()); err != nil { // which writes the log into the file
		return nil, err
	}
	return os.ReadFile(file)
})
