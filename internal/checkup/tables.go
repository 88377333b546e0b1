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
	live, err := c.liveTables(ctx)
	if err != nil {
		return fmt.Errorf("read the tables: %w", err)
	}
	wanted := c.Dialect.Tables()
	sound := !c.failed() // else a setting may pass for a missing right
	if sound {
		if err := c.askRights(ctx, wanted, live); err != nil {
			return fmt.Errorf("ask for the rights on the tables: %w", err)
		}
	}
	if len(live) == 0 {
		c.fail("tables", fmt.Sprintf("there is no table that starts with %q", c.TablePrefix), migrate)
		return nil
	}
	complete := true
	for _, table := range wanted {
		is, found := live[table.Name]
		if !found {
			complete = false
			c.fail(table.Name, "the table is missing", migrate)
			continue
		}
		if is.hidden {
			continue
		}
		missing := slices.DeleteFunc(slices.Clone(table.Columns), func(name string) bool { return slices.Contains(is.columns, name) })
		if len(missing) > 0 {
			complete = false
			c.fail(table.Name, "columns are missing: "+strings.Join(missing, ", "), migrate)
		}
		if is.kind != stored[c.Dialect.Name] {
			c.fail(table.Name, fmt.Sprintf("the table is of kind %q, which can lose committed rows in a crash", is.kind), restore[c.Dialect.Name])
		}
	}
	if sound {
		if lacks, err := c.rights(ctx, wanted, live); err != nil || lacks {
			return err
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

// liveTable is a table as it is in the database.
type liveTable struct {
	columns []string
	kind    string   // of storage
	rights  []string // of the role, such as "select"
	hidden  bool     // MySQL shows a table only to who has a right on it
}

func (c *Checkup) liveTables(ctx context.Context) (map[string]*liveTable, error) {
	rows, err := c.DB.QueryContext(ctx, c.Dialect.SelectColumns)
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // rows.Err tells
	if names, err := rows.Columns(); err != nil {
		return nil, err
	} else if c.Dialect.Name == dialect.MySQLName && strings.Contains(names[0], ".") {
		c.fail("columnsWithAlias", "it is on: columns come under other names than those that statements ask for",
			"remove columnsWithAlias from the connection string")
	}
	live := make(map[string]*liveTable)
	for rows.Next() {
		var table, column, kind, rights string
		if err := rows.Scan(&table, &column, &kind, &rights); err != nil {
			return nil, err
		}
		if live[table] == nil {
			live[table] = &liveTable{kind: strings.ToLower(kind)}
		}
		live[table].columns = append(live[table].columns, column)
		live[table].rights = append(live[table].rights, strings.Split(rights, ",")...)
	}
	return live, rows.Err()
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
