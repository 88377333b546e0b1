package faults

import (
	"context"
	"strings"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
)

// At returns a function for a [Plan], which calls do for each call that contains part.
func At(part string, do func() error) func(context.Context, string) error {
	return func(_ context.Context, call string) error {
		if strings.Contains(call, part) {
			return do()
		}
		return nil
	}
}

// Lose returns a function for a [Plan], by which each call that contains part is lost.
func Lose(part string) func(context.Context, string) error {
	return At(part, func() error { return ErrLost })
}

// Deadlock is an error by which a database says that a transaction was chosen in a deadlock, or that SQLite is busy.
func Deadlock(dialect string) error {
	switch dialect {
	case "mysql":
		return &mysql.MySQLError{Number: 1213, Message: "Deadlock found"}
	case "sqlite":
		return sqliteBusy{}
	}
	return &pgconn.PgError{Code: "40P01", Message: "deadlock detected"}
}

// Limit is an error by which PostgreSQL or MariaDB says that a statement reached its limit of time.
func Limit(dialect string) error {
	if dialect == "mysql" {
		return &mysql.MySQLError{Number: 1969, Message: "Query execution was interrupted (max_statement_time exceeded)"}
	}
	return &pgconn.PgError{Code: "57014", Message: "canceling statement due to statement timeout"}
}

type sqliteBusy struct{}

func (sqliteBusy) Error() string { return "database is locked" }
func (sqliteBusy) Code() int     { return 5 }
