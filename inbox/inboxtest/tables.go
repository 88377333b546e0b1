package inboxtest

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/dialect"
)

// tablesOf lists every table that a connection finds without naming a schema, quoted.
var tablesOf = map[string]string{
	dialect.PostgresName: `
		SELECT quote_ident(tablename)
		FROM pg_tables
		WHERE schemaname = current_schema()`,
	dialect.MySQLName: "SELECT CONCAT('`', TABLE_NAME, '`') FROM information_schema.TABLES" + `
		WHERE TABLE_SCHEMA = DATABASE() AND TABLE_TYPE = 'BASE TABLE'`,
	dialect.SQLiteName: `
		SELECT '"' || name || '"'
		FROM sqlite_master
		WHERE type = 'table' AND name NOT LIKE 'sqlite%'`,
}

// copyPrefix starts the names of the tables that keepTables makes.
const copyPrefix = "kept_"

// listTables lists the tables that a connection finds without naming a schema, quoted: those of the
// service, and those that keepTables made.
func listTables(ctx context.Context, d *dialect.Dialect, db sqlx.QueryerContext) (own, kept []string, err error) {
	var all []string
	if err := sqlx.SelectContext(ctx, db, &all, tablesOf[d.Name]); err != nil {
		return nil, nil, fmt.Errorf("list the tables: %w", err)
	}
	for _, t := range all {
		if strings.HasPrefix(strings.Trim(t, "\"`"), copyPrefix) {
			kept = append(kept, t)
		} else {
			own = append(own, t)
		}
	}
	return own, kept, nil
}

// typesOf lists every type of PostgreSQL that a connection finds without naming a schema, quoted, but for those that
// belong to a table or an extension.
const typesOf = `
	SELECT quote_ident(typname)
	FROM pg_type t
	LEFT JOIN pg_class c ON c.oid = typrelid
	WHERE typnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())
		AND (typtype IN ('e', 'd', 'r') OR relkind = 'c')
		AND NOT EXISTS (SELECT 1 FROM pg_depend WHERE classid = 'pg_type'::regclass AND objid = t.oid AND deptype = 'e')`

// dropTables drops every table, and on PostgreSQL every type, that a connection of db finds without naming a schema.
func dropTables(ctx context.Context, d *dialect.Dialect, db *sqlx.DB) error {
	conn, err := db.Connx(ctx)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // it goes back to the pool
	own, kept, err := listTables(ctx, d, conn)
	if err != nil {
		return err
	}
	var types, statements []string
	if d.Name == dialect.PostgresName {
		if err := conn.SelectContext(ctx, &types, typesOf); err != nil {
			return fmt.Errorf("list the types: %w", err)
		}
	}
	all := slices.Concat(own, kept)
	switch list := strings.Join(all, ", "); {
	case len(all) == 0:
	case d.Name == dialect.PostgresName:
		statements = []string{`DROP TABLE ` + list + ` CASCADE`}
	case d.Name == dialect.MySQLName:
		statements = []string{`SET FOREIGN_KEY_CHECKS = 0`, `DROP TABLE ` + list, `SET FOREIGN_KEY_CHECKS = 1`}
	case d.Name == dialect.SQLiteName:
		for _, t := range all {
			statements = append(statements, `DROP TABLE `+t)
		}
	}
	if len(types) > 0 {
		statements = append(statements, `DROP TYPE `+strings.Join(types, ", ")+` CASCADE`)
	}
	for _, s := range statements {
		if _, err := conn.ExecContext(ctx, s); err != nil {
			return fmt.Errorf("drop the tables: %w", err)
		}
	}
	return nil
}

// countTriggers counts what would store a restored row once more, or another one with it: triggers and, on PostgreSQL, rules and
// child tables such as partitions.
var countTriggers = map[string]string{
	dialect.PostgresName: `
		WITH own AS (
			SELECT oid
			FROM pg_class
			WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())
		)
		SELECT (SELECT COUNT(*) FROM pg_trigger JOIN own ON own.oid = tgrelid WHERE NOT tgisinternal)
			+ (SELECT COUNT(*) FROM pg_rules WHERE schemaname = current_schema())
			+ (SELECT COUNT(*) FROM pg_inherits JOIN own ON own.oid = inhparent)`,
	dialect.MySQLName: `
		SELECT COUNT(*)
		FROM information_schema.TRIGGERS
		WHERE EVENT_OBJECT_SCHEMA = DATABASE()`,
	dialect.SQLiteName: `
		SELECT COUNT(*)
		FROM sqlite_master
		WHERE type = 'trigger'`,
}

// keptTables is a copy of the rows of a database.
type keptTables struct {
	dialect *dialect.Dialect
	tables  []string
	rows    map[string]string // the copy of each table that was not empty
}

// keepTables copies the rows of the tables that a connection of db finds without naming a schema. It returns nil if
// restoring them would make others.
func keepTables(ctx context.Context, d *dialect.Dialect, db *sqlx.DB) (*keptTables, error) {
	var triggers int
	if err := db.GetContext(ctx, &triggers, countTriggers[d.Name]); err != nil {
		return nil, fmt.Errorf("look for triggers: %w", err)
	}
	if triggers > 0 {
		return nil, nil
	}
	own, _, err := listTables(ctx, d, db)
	if err != nil {
		return nil, err
	}
	k := &keptTables{dialect: d, tables: own, rows: map[string]string{}}
	for i, t := range own {
		var some int
		err := db.GetContext(ctx, &some, `SELECT COUNT(*) FROM `+t)
		if err == nil && some > 0 {
			k.rows[t] = fmt.Sprint(copyPrefix, i)
			_, err = db.ExecContext(ctx, `CREATE TABLE `+k.rows[t]+` AS SELECT * FROM `+t)
		}
		if err != nil {
			return nil, fmt.Errorf("copy the rows of %s: %w", t, err)
		}
	}
	return k, nil
}

// restore fills the tables with the copied rows. It does not reset sequences. It fails if the service has made more
// tables, whose rows would stay.
func (k *keptTables) restore(ctx context.Context, db *sqlx.DB) error {
	own, _, err := listTables(ctx, k.dialect, db)
	if err != nil {
		return err
	}
	if len(own) != len(k.tables) { // emptying tells whether they are the same
		return fmt.Errorf("there are %d tables instead of %d", len(own), len(k.tables))
	}
	tx, err := db.BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after a commit there is nothing to roll back
	for _, t := range k.tables {
		if _, err := tx.ExecContext(ctx, `DELETE FROM `+t); err != nil { // all first: a foreign key may delete from others
			return fmt.Errorf("empty %s: %w", t, err)
		}
	}
	for _, t := range slices.Backward(k.tables) { // where deleting went from children to parents
		if kept := k.rows[t]; kept != "" {
			if _, err := tx.ExecContext(ctx, `INSERT INTO `+t+` SELECT * FROM `+kept); err != nil {
				return fmt.Errorf("restore %s: %w", t, err)
			}
		}
	}
	return tx.Commit()
}
