package main

import (
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"
	_ "modernc.org/sqlite" // registers "sqlite"

	"github.com/millrace-go/millrace/internal/dialect"
)

// manner is how to open a connection string.
type manner int

const (
	tuned     manner = iota // with the settings that our sessions need
	asGiven                 // with the service's own settings only
	making                  // tuned, and SQLite creates a missing file
	supposing               // tuned, and a missing file counts as an empty database
)

// Errors about a connection string never contain it.
var (
	errNoDSN = errors.New("which database? give --dsn, or set MILLRACE_DSN, for instance to " +
		"postgres://user@host/database, mysql://user@host/database or sqlite:path/to/file.db; millrace context gives databases names")
	errForm = errors.New("the DSN does not begin with postgres://, mysql://, sqlite: or file:, " +
		"and is not user:password@tcp(host:3306)/database either")
	errURL      = errors.New("the DSN is not a URL: are @, /, :, ?, # and % in the password written %40, %2F, %3A, %3F, %23 and %25?")
	errPostgres = errors.New("the DSN cannot be parsed: it must look like postgres://user:password@host:5432/database")
	errMySQL    = errors.New("the DSN cannot be parsed: it must look like mysql://user:password@host:3306/database")
	errNoFile   = errors.New("there is no file at the path in the DSN: is the path right? millrace migrate creates a new one")
	errMemory   = errors.New("a database in memory ends with the command: name a file")
)

// source is a database as the user named it.
type source struct {
	dialect string
	dsn     string
}

// sourceOf returns the database that a connection string names.
func sourceOf(dsn string) (source, error) {
	switch {
	case dsn == "":
		return source{}, errNoDSN
	case strings.HasPrefix(dsn, "postgres://"), strings.HasPrefix(dsn, "postgresql://"):
		return source{dialect.PostgresName, dsn}, nil
	case strings.HasPrefix(dsn, "mysql://"), strings.Contains(dsn, "@tcp("), strings.Contains(dsn, "@unix("):
		return source{dialect.MySQLName, dsn}, nil
	case strings.HasPrefix(dsn, "sqlite:"), strings.HasPrefix(dsn, "file:"):
		return source{dialect.SQLiteName, dsn}, nil
	}
	return source{}, errForm
}

// open opens a pool but no connection yet.
func (s source) open(how manner, hidden *secrets) (*sqlx.DB, error) {
	hidden.add(s.dsn)
	switch s.dialect {
	case dialect.PostgresName:
		return openPostgres(s.dsn, how, hidden)
	case dialect.MySQLName:
		return openMySQL(s.dsn, how, hidden)
	}
	return openSQLite(s.dsn, how)
}

func openPostgres(dsn string, how manner, hidden *secrets) (*sqlx.DB, error) {
	u, err := parseURL(dsn)
	if err != nil {
		return nil, err
	}
	hide(u, hidden)
	q := u.Query()
	orSet(q, "default_query_exec_mode", "exec") // one round trip a statement, through any pooler
	if how != asGiven {
		orSet(q, "idle_in_transaction_session_timeout", "30000")
		orSet(q, "lock_timeout", "10000")
		orSet(q, "connect_timeout", "10")
		orSet(q, "application_name", "millrace")
	}
	u.RawQuery = strings.ReplaceAll(q.Encode(), "+", "%20") // pgx does not read a plus as a space
	hidden.add(u.String())
	hidden.addPassword(q.Get("password"), q.Get("user"))
	config, err := pgx.ParseConfig(u.String())
	if cause := errors.Unwrap(err); cause != nil { // the error itself quotes the DSN
		return nil, fmt.Errorf("the DSN cannot be parsed: %w", cause)
	}
	if err != nil {
		return nil, errPostgres
	}
	hidden.addPassword(config.Password, config.User, config.Database) // of a password file or PGPASSWORD too
	return sqlx.NewDb(stdlib.OpenDB(*config), "pgx"), nil
}

func openMySQL(dsn string, how manner, hidden *secrets) (*sqlx.DB, error) {
	config, err := parseMySQL(dsn, hidden)
	if err != nil {
		return nil, err
	}
	hidden.add(config.FormatDSN())
	hidden.addPassword(config.Passwd, config.User, config.DBName)
	config.Logger = &mysql.NopLogger{}
	if how != asGiven {
		if config.Params == nil {
			config.Params = make(map[string]string)
		}
		if config.Params["innodb_lock_wait_timeout"] == "" {
			config.Params["innodb_lock_wait_timeout"] = "10"
		}
		if err := dialect.CheckCharset(config.FormatDSN()); err != nil {
			return nil, err
		}
		config.ParseTime, config.InterpolateParams = true, true
		if config.Timeout == 0 {
			config.Timeout = 10 * time.Second
		}
	}
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, errMySQL
	}
	return sqlx.NewDb(sql.OpenDB(connector), "mysql"), nil
}

func parseMySQL(dsn string, hidden *secrets) (*mysql.Config, error) {
	if !strings.HasPrefix(dsn, "mysql://") {
		config, err := mysql.ParseDSN(dsn)
		if err != nil {
			return nil, errMySQL
		}
		return config, nil
	}
	u, err := parseURL(dsn)
	if err != nil {
		return nil, err
	}
	hide(u, hidden)
	host := u.Host
	if u.Port() == "" {
		host += ":3306"
	}
	config, err := mysql.ParseDSN("tcp(" + host + ")" + u.EscapedPath() + "?" + u.RawQuery)
	if err != nil {
		return nil, errMySQL
	}
	config.User = u.User.Username()
	config.Passwd, _ = u.User.Password()
	return config, nil
}

func openSQLite(dsn string, how manner) (*sqlx.DB, error) {
	path, query, _ := strings.Cut(dsn, "?")
	name := strings.TrimPrefix(strings.TrimPrefix(path, "sqlite:"), "file:")
	name = strings.TrimPrefix(name, "//") // of a URL without a host
	q, err := url.ParseQuery(query)
	if err != nil {
		return nil, errURL
	}
	plain := name
	if strings.HasPrefix(path, "file:") {
		if plain, err = url.PathUnescape(name); err != nil {
			return nil, errURL
		}
	}
	if plain == "" || plain == ":memory:" || q.Get("mode") == "memory" {
		return nil, errMemory
	}
	if _, err := os.Stat(plain); err != nil {
		switch how {
		case making:
			q.Add("_pragma", "journal_mode(WAL)") // the file remembers it
		case supposing:
			return sqlx.Open("sqlite", ":memory:")
		default:
			return nil, errNoFile
		}
	}
	if how != asGiven {
		if !strings.Contains(query, "busy_timeout") {
			q.Add("_pragma", "busy_timeout(10000)")
		}
		orSet(q, "_txlock", "immediate")
	}
	return sqlx.Open("sqlite", "file:"+(&url.URL{Path: plain}).EscapedPath()+"?"+q.Encode())
}

// parseURL refuses what has an @ after its host: the rest of a password that is not escaped is no database, and no setting.
func parseURL(dsn string) (*url.URL, error) {
	u, err := url.Parse(dsn)
	if err != nil {
		return nil, errURL
	}
	setting, _, _ := strings.Cut(u.RawQuery, "=")
	if strings.Contains(u.EscapedPath()+setting+u.EscapedFragment(), "@") {
		return nil, errURL
	}
	return u, nil
}

// hide hides the secrets of a URL.
func hide(u *url.URL, hidden *secrets) {
	if password, set := u.User.Password(); set {
		hidden.add(u.User.String())
		hidden.addPassword(password, u.User.Username(), strings.TrimPrefix(u.Path, "/"))
	}
}

func orSet(q url.Values, name, value string) {
	if !q.Has(name) {
		q.Set(name, value)
	}
}
