package inboxtest

import (
	"database/sql/driver"
	"errors"
	"io"
	"slices"
)

func values(args []driver.NamedValue) []driver.Value {
	all := make([]driver.Value, len(args))
	for i, a := range args {
		all[i] = a.Value
	}
	return all
}

func named(args []driver.Value) []driver.NamedValue {
	all := make([]driver.NamedValue, len(args))
	for i, a := range args {
		all[i] = driver.NamedValue{Ordinal: i + 1, Value: a}
	}
	return all
}

// readAll reads all rows from the driver at once, so that the connection is idle between two
// calls.
func readAll(rows driver.Rows) (driver.Rows, error) {
	all := &table{columns: rows.Columns()}
	if typed, able := rows.(driver.RowsColumnTypeDatabaseTypeName); able {
		for i := range all.columns {
			all.types = append(all.types, typed.ColumnTypeDatabaseTypeName(i))
		}
	}
	row := make([]driver.Value, len(all.columns))
	for {
		err := rows.Next(row)
		if errors.Is(err, io.EOF) {
			return all, rows.Close()
		}
		if err != nil {
			return nil, errors.Join(err, rows.Close())
		}
		kept := slices.Clone(row)
		for i, v := range kept {
			if b, is := v.([]byte); is {
				kept[i] = slices.Clone(b) // the driver reuses its buffer
			}
		}
		all.rows = append(all.rows, kept)
	}
}

// table holds rows that were read.
type table struct {
	columns []string
	types   []string
	rows    [][]driver.Value
}

func (t *table) Columns() []string { return t.columns }
func (t *table) Close() error      { return nil }

func (t *table) ColumnTypeDatabaseTypeName(i int) string {
	if t.types == nil {
		return ""
	}
	return t.types[i]
}

func (t *table) Next(row []driver.Value) error {
	if len(t.rows) == 0 {
		return io.EOF
	}
	copy(row, t.rows[0])
	t.rows = t.rows[1:]
	return nil
}
