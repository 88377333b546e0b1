package dialect

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/jmoiron/sqlx"
)

// In expands the lists in args and returns query with the database's own placeholders.
func (d *Dialect) In(query string, args ...any) (string, []any, error) {
	query, args, err := sqlx.In(query, args...)
	if err != nil {
		return "", nil, fmt.Errorf("expand a list: %w", err)
	}
	return sqlx.Rebind(d.BindType, query), args, nil
}

// Settings returns what SelectSettings finds, as the connection sees it.
func (d *Dialect) Settings(ctx context.Context, db sqlx.QueryerContext) (map[string]string, error) {
	rows, err := db.QueryContext(ctx, d.SelectSettings)
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // rows.Err tells
	found := make(map[string]string)
	for rows.Next() {
		var name, value string
		if err := rows.Scan(&name, &value); err != nil {
			return nil, err
		}
		found[name] = value
	}
	return found, rows.Err()
}

// bind gives a shared statement the database's own placeholders. It leaves a statement with a list to In.
func (d *Dialect) bind(shared string) string {
	if d.BindType != sqlx.DOLLAR || strings.Contains(shared, "IN (?)") {
		return shared
	}
	n := 0
	return argument.ReplaceAllStringFunc(shared, func(a string) string {
		if n++; a == "?" {
			return fmt.Sprintf("$%d", n)
		}
		return "$" + a[1:]
	})
}

// Rows turns an INSERT of one row with an ON CONFLICT or ON DUPLICATE KEY clause into one of n
// rows. It takes the arguments of a row n times.
func Rows(insert string, n int) string {
	const conflict = "\n\t\tON "
	one, rest, _ := strings.Cut(insert, conflict)
	return InsertMany(one, n) + conflict + rest
}

// Impatient returns a statement with which MariaDB gives up waiting for a lock after a second: it would go on with the
// statement of a client that has left, and keep the locks that the statement has got.
func (d *Dialect) Impatient(statement string) string {
	if d.Name == MySQLName {
		return "/*M! SET STATEMENT innodb_lock_wait_timeout = 1 FOR */" + statement
	}
	return statement
}

// InsertMany turns Insert or InsertAlone into an INSERT of n messages. It takes the arguments of a message n times.
func InsertMany(insert string, n int) string {
	head, row, _ := strings.Cut(insert, "VALUES ")
	return head + "VALUES " + row + repeated(", ", row, n)
}

// AtOnce returns how many of n rows an INSERT of many stores: up to 500 all of them, so that batches need no second one, and
// of more whole hundreds, with the rest by another. Drivers and servers keep each text that they have prepared, so not each
// number of rows may have one.
func AtOnce(n int) int {
	const exact = 500
	if n > exact {
		n -= n % 100
	}
	return n
}

// UnionAll turns a SELECT into one of n such queries. It takes the arguments of the SELECT n times.
func UnionAll(query string, n int) string { return query + repeated("\nUNION ALL", query, n) }

// ForEach turns a SELECT into one of n such queries, which takes the arguments of the SELECT n times. If the SELECT has a
// table of arguments, (VALUES (…)) a, that gets n rows: PostgreSQL would plan each of n queries by itself.
func ForEach(query string, n int) string {
	const values, end = "(VALUES ", ") a ("
	head, rest, table := strings.Cut(query, values)
	if !table {
		return UnionAll(query, n)
	}
	row, tail, _ := strings.Cut(rest, end)
	return head + values + row + repeated(", ", row, n) + end + tail
}

var (
	argument = regexp.MustCompile(`\?\d*`)
	numbered = regexp.MustCompile(`\$(\d+)`)
)

// repeated returns part n-1 more times, each time with placeholders of its own.
func repeated(separator, part string, n int) string {
	number := func(p string) int {
		k, err := strconv.Atoi(p[1:])
		if err != nil {
			panic(err) // digits
		}
		return k
	}
	width := 0
	for _, p := range numbered.FindAllString(part, -1) {
		width = max(width, number(p))
	}
	var b strings.Builder
	for i := 1; i < n; i++ {
		b.WriteString(separator)
		b.WriteString(numbered.ReplaceAllStringFunc(part, func(p string) string {
			return fmt.Sprintf("$%d", number(p)+i*width)
		}))
	}
	return b.String()
}

func ignoreDone(err error) error {
	if errors.Is(err, sql.ErrTxDone) {
		return nil
	}
	return err
}
