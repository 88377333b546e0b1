package inboxtest

import (
	"database/sql/driver"
	"errors"
	"io"
	"reflect"
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

// readAll reads all rows of all result sets from the driver at once, so that the connection is idle between two
// calls.
func readAll(rows driver.Rows) (driver.Rows, error) {
	all := &results{}
	for {
		set, err := readSet(rows)
		if err != nil {
			return nil, errors.Join(err, rows.Close())
		}
		all.sets = append(all.sets, set)
		more, able := rows.(driver.RowsNextResultSet)
		if !able || !more.HasNextResultSet() {
			return all, rows.Close()
		}
		err = more.NextResultSet()
		if errors.Is(err, io.EOF) {
			return all, rows.Close()
		}
		if err != nil {
			return nil, errors.Join(err, rows.Close())
		}
	}
}

func readSet(rows driver.Rows) (*table, error) {
	set := &table{}
	for i, name := range rows.Columns() {
		set.names = append(set.names, name)
		set.columns = append(set.columns, columnOf(rows, i))
	}
	row := make([]driver.Value, len(set.names))
	for {
		err := rows.Next(row)
		if errors.Is(err, io.EOF) {
			return set, nil
		}
		if err != nil {
			return nil, err
		}
		kept := slices.Clone(row)
		for i, v := range kept {
			if b, is := v.([]byte); is {
				kept[i] = slices.Clone(b) // the driver reuses its buffer
			}
		}
		set.rows = append(set.rows, kept)
	}
}

// column is what a driver knows of a column.
type column struct {
	database                 string // the name of its type
	scan                     reflect.Type
	nullable, knowsNullable  bool
	length, precision, scale int64
	knowsLength, knowsScale  bool
}

func columnOf(rows driver.Rows, i int) column {
	c := column{scan: reflect.TypeFor[any]()}
	if typed, able := rows.(driver.RowsColumnTypeDatabaseTypeName); able {
		c.database = typed.ColumnTypeDatabaseTypeName(i)
	}
	if typed, able := rows.(driver.RowsColumnTypeScanType); able {
		c.scan = typed.ColumnTypeScanType(i)
	}
	if typed, able := rows.(driver.RowsColumnTypeNullable); able {
		c.nullable, c.knowsNullable = typed.ColumnTypeNullable(i)
	}
	if typed, able := rows.(driver.RowsColumnTypeLength); able {
		c.length, c.knowsLength = typed.ColumnTypeLength(i)
	}
	if typed, able := rows.(driver.RowsColumnTypePrecisionScale); able {
		c.precision, c.scale, c.knowsScale = typed.ColumnTypePrecisionScale(i)
	}
	return c
}

// table holds the rows of a result set.
type table struct {
	names   []string
	columns []column
	rows    [][]driver.Value
}

// results are the result sets that were read. The first is the current one.
type results struct{ sets []*table }

func (r *results) Columns() []string      { return r.sets[0].names }
func (r *results) Close() error           { return nil }
func (r *results) HasNextResultSet() bool { return len(r.sets) > 1 }
func (r *results) column(i int) column    { return r.sets[0].columns[i] }

func (r *results) ColumnTypeDatabaseTypeName(i int) string { return r.column(i).database }
func (r *results) ColumnTypeScanType(i int) reflect.Type   { return r.column(i).scan }
func (r *results) ColumnTypeNullable(i int) (nullable, ok bool) {
	return r.column(i).nullable, r.column(i).knowsNullable
}
func (r *results) ColumnTypeLength(i int) (int64, bool) {
	return r.column(i).length, r.column(i).knowsLength
}

func (r *results) ColumnTypePrecisionScale(i int) (precision, scale int64, ok bool) {
	c := r.column(i)
	return c.precision, c.scale, c.knowsScale
}

func (r *results) NextResultSet() error {
	if !r.HasNextResultSet() {
		return io.EOF
	}
	r.sets = r.sets[1:]
	return nil
}

func (r *results) Next(row []driver.Value) error {
	now := r.sets[0]
	if len(now.rows) == 0 {
		return io.EOF
	}
	copy(row, now.rows[0])
	now.rows = now.rows[1:]
	return nil
}
