package checkup

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace-go/millrace/internal/dialect"
)

const migrate = "run Store.Migrate or apply Store.Schema()"

// stored is the kind of table that survives a crash, for each database.
var stored = map[string]string{"postgres": "permanent", "mysql": "innodb", "sqlite": "file"}

// tables compares the tables with those that this release expects.
func (c *Checkup) tables(ctx context.Context) error {
	live, storage, err := c.liveTables(ctx)
	if err != nil {
		return fmt.Errorf("read the tables: %w", err)
	}
	wanted := c.Dialect.Tables()
	if len(live) == 0 {
		c.fail("tables", fmt.Sprintf("there is no table that starts with %q", c.TablePrefix), migrate)
		return nil
	}
	complete := true
	for _, table := range wanted {
		columns, found := live[table.Name]
		if !found {
			complete = false
			c.fail(table.Name, "the table is missing", migrate)
			continue
		}
		missing := slices.DeleteFunc(slices.Clone(table.Columns), func(name string) bool { return slices.Contains(columns, name) })
		if len(missing) > 0 {
			complete = false
			c.fail(table.Name, "columns are missing: "+strings.Join(missing, ", "), migrate)
		}
		if kind := storage[table.Name]; kind != stored[c.Dialect.Name] {
			c.fail(table.Name, fmt.Sprintf("the table is of kind %q, which can lose committed rows in a crash", kind), restore[c.Dialect.Name])
		}
	}
	if !complete {
		return nil
	}
	if err := c.statistics(ctx); err != nil {
		return err
	}
	return c.version(ctx)
}

var restore = map[string]string{
	"postgres": "ALTER TABLE … SET LOGGED, or create the tables again",
	"mysql":    "ALTER TABLE … ENGINE = InnoDB",
}

func (c *Checkup) liveTables(ctx context.Context) (columns map[string][]string, storage map[string]string, err error) {
	rows, err := c.DB.QueryContext(ctx, c.Dialect.SelectColumns)
	if err != nil {
		return nil, nil, err
	}
	defer rows.Close() //nolint:errcheck // rows.Err tells
	if names, err := rows.Columns(); err != nil {
		return nil, nil, err
	} else if c.Dialect.Name == dialect.MySQLName && strings.Contains(names[0], ".") {
		c.fail("columnsWithAlias", "it is on: columns come under other names than those that statements ask for",
			"remove columnsWithAlias from the connection string")
	}
	columns, storage = make(map[string][]string), make(map[string]string)
	for rows.Next() {
		var table, column, kind string
		if err := rows.Scan(&table, &column, &kind); err != nil {
			return nil, nil, err
		}
		columns[table] = append(columns[table], column)
		storage[table] = strings.ToLower(kind)
	}
	return columns, storage, rows.Err()
}

// version checks the schema's version. A release works with the schema of the next one.
func (c *Checkup) version(ctx context.Context) error {
	var version int
	if err := c.DB.GetContext(ctx, &version, c.Dialect.SelectVersion); err != nil {
		return fmt.Errorf("read the schema's version: %w", err)
	}
	subject := c.TablePrefix + "schema"
	switch known := c.Dialect.Version(); {
	case version < known:
		c.fail(subject, fmt.Sprintf("the schema has version %d, but this release needs %d", version, known), migrate)
	case version > known+1:
		c.warn(subject, fmt.Sprintf("the schema has version %d, but this release knows only %d", version, known),
			"update this service: only adjacent releases work with the same schema")
	}
	return nil
}
