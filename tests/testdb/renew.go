package testdb

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jmoiron/sqlx"
)

func renewPostgres(ctx context.Context, db *sqlx.DB, kept []int32) (shape string, err error) {
	if err := clearPostgres(ctx, db, kept); err != nil {
		return "", err
	}
	return shapePostgres(ctx, db)
}

func clearPostgres(ctx context.Context, db *sqlx.DB, kept []int32) error {
	if _, err := db.ExecContext(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()
			AND ($1::int[] IS NULL OR NOT pid = ANY($1))`, kept); err != nil {
		return err
	}
	var foreign []string
	tables := `SELECT quote_ident(relname) FROM pg_class
		WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v', 'm', 'f') AND `
	if err := db.SelectContext(ctx, &foreign, tables+`NOT relname = ANY($1) AND relname NOT LIKE 'millrace\_v\_%'`, ours("postgres")); err != nil {
		return err
	}
	var written []struct {
		Name  string
		Grown bool
	}
	if err := db.SelectContext(ctx, &written, `
		SELECT name, grown OR size > 8 * 8192 AS grown
		FROM (
			SELECT quote_ident(relname) AS name, reltuples <> -1 AS grown, pg_relation_size(oid) AS size
			FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relname = ANY($1) AND relname <> '`+versions+`'
		) AS t WHERE grown OR size > 0`, ours("postgres")); err != nil {
		return err
	}
	var script strings.Builder
	for _, t := range foreign {
		fmt.Fprintf(&script, "DROP TABLE %s CASCADE;", t)
	}
	for _, t := range written {
		if t.Grown {
			fmt.Fprintf(&script, "TRUNCATE %s;", t.Name)
		} else { // a tenth of the time, and the planner does not tell up to ten pages from none
			fmt.Fprintf(&script, "DELETE FROM %s;", t.Name)
		}
	}
	script.WriteString("SELECT setval(seqrelid::regclass, seqstart, false) FROM pg_sequence WHERE pg_sequence_last_value(seqrelid) IS NOT NULL")
	_, err := db.ExecContext(ctx, script.String())
	return err
}

func shapePostgres(ctx context.Context, db *sqlx.DB) (shape string, err error) {
	err = db.GetContext(ctx, &shape, `
		SELECT string_agg(line, E'\n' ORDER BY line)
		FROM (
			SELECT concat_ws(' ', 'relation', relname, relkind, relpersistence, reloptions, relreplident, relrowsecurity,
				CASE WHEN relkind IN ('r', 't') AND relname <> '`+versions+`' THEN reltuples END) AS line
			FROM pg_class WHERE relnamespace = 'public'::regnamespace
			UNION ALL
			SELECT concat_ws(' ', 'column', relname, attname, attnum, atttypid, atttypmod, attcollation, attnotnull, attidentity,
				attgenerated, attstattarget, attoptions, pg_get_expr(adbin, adrelid))
			FROM pg_attribute
			JOIN pg_class c ON c.oid = attrelid
			LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
			WHERE relnamespace = 'public'::regnamespace
			UNION ALL
			SELECT concat_ws(' ', 'index', i.relname, t.relname, indisunique, indisvalid, indkey, indclass, indcollation, indoption,
				md5(indexprs), md5(indpred)) -- pg_get_indexdef takes ten times as long
			FROM pg_index JOIN pg_class i ON i.oid = indexrelid JOIN pg_class t ON t.oid = indrelid
			WHERE i.relnamespace = 'public'::regnamespace
			UNION ALL
			SELECT concat_ws(' ', 'constraint', conrelid::regclass, conname, convalidated, pg_get_constraintdef(oid))
			FROM pg_constraint WHERE connamespace = 'public'::regnamespace
			UNION ALL
			SELECT concat_ws(' ', 'trigger', tgname, tgenabled) FROM pg_trigger WHERE NOT tgisinternal
			UNION ALL
			SELECT concat_ws(' ', 'statistics', starelid::regclass) FROM pg_statistic WHERE starelid >= 16384
			UNION ALL
			SELECT concat_ws(' ', 'function', proname, prosrc) FROM pg_proc WHERE pronamespace = 'public'::regnamespace
			UNION ALL
			SELECT concat_ws(' ', 'type', typname) FROM pg_type WHERE typnamespace = 'public'::regnamespace
			UNION ALL
			SELECT concat_ws(' ', 'schema', nspname, nspacl) FROM pg_namespace WHERE nspname !~ '^pg_(toast_)?temp_'
			UNION ALL
			SELECT concat_ws(' ', 'extension', extname) FROM pg_extension
			UNION ALL
			SELECT concat_ws(' ', 'publication', pubname) FROM pg_publication
			UNION ALL
			SELECT concat_ws(' ', 'event trigger', evtname) FROM pg_event_trigger
			UNION ALL
			SELECT concat_ws(' ', 'privileges', relname, relacl) FROM pg_class
			WHERE relnamespace = 'public'::regnamespace AND relacl IS NOT NULL
			UNION ALL
			SELECT concat_ws(' ', 'setting', setrole, setconfig) FROM pg_db_role_setting
			JOIN pg_database d ON d.oid = setdatabase WHERE datname = current_database()
			UNION ALL
			SELECT concat_ws(' ', 'privileges', datacl, datallowconn, datconnlimit) FROM pg_database WHERE datname = current_database()
			UNION ALL
			SELECT concat_ws(' ', 'prepared', gid) FROM pg_prepared_xacts WHERE database = current_database()
			UNION ALL
			SELECT concat_ws(' ', 'version', version) FROM `+versions+`
		) AS lines`)
	return shape, err
}

// counter is the part of SHOW CREATE TABLE that says that rows have been written.
var counter = regexp.MustCompile(` AUTO_INCREMENT=\d+`)

func renewMySQL(ctx context.Context, db *sqlx.DB, _ []int32) (shape string, err error) {
	tables, err := tablesOfMySQL(ctx, db)
	if err != nil {
		return "", err
	}
	if err := clearMySQL(ctx, db, tables); err != nil {
		return "", err
	}
	return shapeOfTables(ctx, db, slices.DeleteFunc(tables, mysqlTable.foreign))
}

func clearMySQL(ctx context.Context, db *sqlx.DB, tables []mysqlTable) error {
	var database string
	if err := db.GetContext(ctx, &database, "SELECT DATABASE()"); err != nil {
		return err
	}
	if err := disconnectMySQL(ctx, db, database); err != nil {
		return err
	}
	script := []string{"SET SESSION lock_wait_timeout = 10", "SET SESSION foreign_key_checks = 0"}
	for _, t := range tables {
		var written bool
		switch {
		case t.foreign() && t.Kind == "VIEW":
			script = append(script, "DROP VIEW `"+t.Name+"`")
		case t.foreign():
			script = append(script, "DROP TABLE `"+t.Name+"`")
		case t.Kind == "VIEW", t.Name == versions:
		case counter.MatchString(t.Definition):
			written = true
		default:
			if err := db.GetContext(ctx, &written, "SELECT EXISTS (SELECT 1 FROM `"+t.Name+"`)"); err != nil {
				return err
			}
		}
		if written {
			script = append(script, "TRUNCATE `"+t.Name+"`")
		}
	}
	for _, statement := range script {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

func shapeMySQL(ctx context.Context, db *sqlx.DB) (string, error) {
	tables, err := tablesOfMySQL(ctx, db)
	if err != nil {
		return "", err
	}
	return shapeOfTables(ctx, db, tables)
}

func shapeOfTables(ctx context.Context, db *sqlx.DB, tables []mysqlTable) (string, error) {
	var shape strings.Builder
	for _, t := range tables {
		fmt.Fprintln(&shape, t.Name, t.Kind, counter.ReplaceAllString(t.Definition, ""))
	}
	var others []string
	err := db.SelectContext(ctx, &others, `
		SELECT CONCAT('trigger ', TRIGGER_NAME) FROM information_schema.TRIGGERS
		WHERE EVENT_OBJECT_SCHEMA = DATABASE() -- by TRIGGER_SCHEMA it would read the tables of all databases
		UNION ALL
		SELECT CONCAT('routine ', ROUTINE_NAME) FROM information_schema.ROUTINES WHERE ROUTINE_SCHEMA = DATABASE()
		UNION ALL
		SELECT CONCAT('event ', EVENT_NAME) FROM information_schema.EVENTS WHERE EVENT_SCHEMA = DATABASE()
		UNION ALL
		SELECT CONCAT('collation ', DEFAULT_COLLATION_NAME) FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = DATABASE()
		UNION ALL
		SELECT CONCAT('version ', version) FROM `+versions)
	slices.Sort(others)
	return shape.String() + strings.Join(others, "\n"), err
}

type mysqlTable struct{ Name, Kind, Definition string }

// foreign reports whether a test made it.
func (t mysqlTable) foreign() bool {
	if t.Kind == "VIEW" {
		return !strings.HasPrefix(t.Name, "millrace_v_")
	}
	return !slices.Contains(ours("mysql"), t.Name)
}

func tablesOfMySQL(ctx context.Context, db *sqlx.DB) ([]mysqlTable, error) {
	var tables []mysqlTable
	if err := db.SelectContext(ctx, &tables, `
		SELECT TABLE_NAME AS name, TABLE_TYPE AS kind
		FROM information_schema.TABLES
		WHERE TABLE_SCHEMA = DATABASE()
		ORDER BY TABLE_NAME`); err != nil {
		return nil, err
	}
	for i, t := range tables {
		if t.Kind != "BASE TABLE" {
			continue
		}
		var name string
		if err := db.QueryRowxContext(ctx, "SHOW CREATE TABLE `"+t.Name+"`").Scan(&name, &tables[i].Definition); err != nil {
			return nil, err
		}
	}
	return tables, nil
}

// versions is the table that says how new a schema is.
const versions = "millrace_schema"

// ours are the tables of Millrace.
func ours(dialect string) []string {
	var names []string
	for _, t := range schema(dialect).Tables() {
		names = append(names, t.Name)
	}
	return names
}
