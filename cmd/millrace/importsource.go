package main

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"strconv"
	"time"

	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/internal/dialect"
)

// source returns the keys. A key has parts parts.
func (i *importing) source(ctx context.Context, file string, parts int) (iter.Seq2[admin.Imported, error], func(), error) {
	switch {
	case i.query != "":
		return i.selected(ctx, parts)
	case file == "" && isTerminal(i.cmd.InOrStdin()):
		return nil, nil, usagef("which keys? name a file, give --query, or write them to standard input, or - to type them")
	case file == "" || file == "-":
		return i.lines(i.cmd.InOrStdin(), parts), func() {}, nil
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, nil, usagef("%w", err)
	}
	return i.lines(f, parts), func() { _ = f.Close() }, nil
}

// lines reads CSV. It refuses a bad line by its number.
func (i *importing) lines(from io.Reader, parts int) iter.Seq2[admin.Imported, error] {
	return func(yield func(admin.Imported, error) bool) {
		text := bufio.NewReader(from)
		if mark, err := text.Peek(3); err == nil && string(mark) == "\ufeff" {
			_, _ = text.Discard(len(mark)) // it was peeked
		}
		lines := csv.NewReader(text)
		lines.FieldsPerRecord, lines.ReuseRecord = -1, true
		for first := i.header; ; first = false {
			fields, err := lines.Read()
			var wrong *csv.ParseError
			switch {
			case errors.Is(err, io.EOF):
				return
			case errors.As(err, &wrong):
				err = yielded(yield, admin.Imported{Key: fields, Problem: wrong})
			case err != nil:
				yield(admin.Imported{}, fmt.Errorf("read keys: %w", err))
				return
			case first:
			default:
				err = yielded(yield, importedOf(fields, parts))
			}
			if err != nil {
				return
			}
		}
	}
}

var errEnough = errors.New("enough")

func yielded(yield func(admin.Imported, error) bool, in admin.Imported) error {
	if !yield(in, nil) {
		return errEnough
	}
	return nil
}

// importedOf makes a message from the parts of a key and a time.
func importedOf(fields []string, parts int) admin.Imported {
	in := admin.Imported{Key: fields}
	if len(fields) != parts+1 {
		return in // the import checks that nothing is missing
	}
	in.Key = fields[:parts]
	in.ProcessedAt, in.Problem = handledAt(fields[parts])
	return in
}

// handledAt parses a time: an empty text, seconds since 1970, or what a database prints.
func handledAt(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	const latest = 100_000_000_000 // the year 5138; in milliseconds, the year 1973
	if n, err := strconv.ParseFloat(text, 64); err == nil {
		if !(n >= 0 && n < latest) { // nor NaN
			return time.Time{}, fmt.Errorf("%s is not a time in seconds since 1970: are they milliseconds?", text)
		}
		return time.UnixMicro(int64(n * 1e6)).UTC(), nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02 15:04:05Z07", "2006-01-02 15:04:05Z07:00"} {
		if t, err := time.Parse(layout, text); err == nil {
			return t.UTC(), nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is not a time, such as 2026-05-01T08:00:00Z", text)
}

// selected reads the rows of the query, on a connection that cannot write.
func (i *importing) selected(ctx context.Context, parts int) (iter.Seq2[admin.Imported, error], func(), error) {
	conn, err := i.at.db.Conn(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("read keys: %w", err)
	}
	rows, end, err := i.readOnly(ctx, conn)
	close := func() {
		end()
		_ = conn.Close()
	}
	if err != nil {
		close()
		return nil, nil, &coded{exitUsage, fmt.Errorf("--query: %w", err)}
	}
	columns, err := rows.Columns()
	if err == nil && len(columns) != parts && len(columns) != parts+1 {
		err = usagef("--query returns %d columns, and the key has %d parts: select them, and when the message was handled", len(columns), parts)
	}
	if err != nil {
		close()
		return nil, nil, err
	}
	return scanned(rows, len(columns), parts), close, nil
}

// readOnly starts the query. On SQLite a transaction would lock out every writer. MySQL returns a
// TIMESTAMP in the time zone of the session without naming the zone.
func (i *importing) readOnly(ctx context.Context, conn *sql.Conn) (rows *sql.Rows, end func(), err error) {
	if i.at.dialect == dialect.SQLiteName {
		end := func() { _, _ = conn.ExecContext(context.WithoutCancel(ctx), `PRAGMA query_only = FALSE`) }
		if _, err := conn.ExecContext(ctx, `PRAGMA query_only = TRUE`); err != nil {
			return nil, end, err
		}
		rows, err := conn.QueryContext(ctx, i.query)
		return rows, func() { closeRows(rows); end() }, err
	}
	if i.at.dialect == dialect.MySQLName {
		if _, err := conn.ExecContext(ctx, `SET time_zone = '+00:00'`); err != nil {
			return nil, func() {}, err
		}
	}
	tx, err := conn.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return nil, func() {}, err
	}
	rows, err = tx.QueryContext(ctx, i.query)
	return rows, func() { closeRows(rows); _ = tx.Rollback() }, err
}

func closeRows(rows *sql.Rows) {
	if rows != nil {
		_ = rows.Close()
	}
}

func scanned(rows *sql.Rows, columns, parts int) iter.Seq2[admin.Imported, error] {
	return func(yield func(admin.Imported, error) bool) {
		values, into := make([]any, columns), make([]any, columns)
		for n := range values {
			into[n] = &values[n]
		}
		for rows.Next() {
			if err := rows.Scan(into...); err != nil {
				yield(admin.Imported{}, fmt.Errorf("read keys: %w", err))
				return
			}
			if !yield(importedRow(values, parts), nil) {
				return
			}
		}
		if err := rows.Err(); err != nil {
			yield(admin.Imported{}, fmt.Errorf("read keys: %w", err))
		}
	}
}

// importedRow makes a message from the columns of a row.
func importedRow(values []any, parts int) admin.Imported {
	fields := make([]string, 0, len(values))
	for n, v := range values {
		switch v := v.(type) {
		case nil:
			fields = append(fields, "")
		case []byte:
			fields = append(fields, string(v))
		case time.Time:
			if n == parts {
				in := importedOf(fields, parts)
				in.ProcessedAt = v
				return in
			}
			fields = append(fields, v.UTC().Format(time.RFC3339Nano))
		case float64:
			fields = append(fields, strconv.FormatFloat(v, 'f', -1, 64))
		default:
			fields = append(fields, fmt.Sprint(v))
		}
	}
	return importedOf(fields, parts)
}
