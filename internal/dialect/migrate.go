package dialect

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/owned"
)

// Version is the newest schema this release knows.
func (d *Dialect) Version() int { return len(d.scripts) }

// Schema returns the whole DDL, for users with migrations of their own.
func (d *Dialect) Schema() string {
	var b strings.Builder
	b.WriteString(d.CreateVersions + ";\n\n")
	for i := range d.scripts {
		b.WriteString(d.recorded(i))
	}
	return b.String()
}

// recorded returns a script that ends with the row that says so.
func (d *Dialect) recorded(i int) string {
	return fmt.Sprintf("%s\nINSERT INTO %s (version, applied_at) VALUES (%d, 0);\n", d.scripts[i], d.versionsTable(), i+1)
}

func (d *Dialect) versionsTable() string {
	_, rest, _ := strings.Cut(d.CreateVersions, "EXISTS ")
	name, _, _ := strings.Cut(rest, " ")
	return name
}

// Script is one migration, with the row that records it.
type Script struct {
	Version int
	DDL     string
}

// Pending returns the migrations that Migrate would apply.
func (d *Dialect) Pending(ctx context.Context, db sqlx.QueryerContext) ([]Script, error) {
	var version int
	err := sqlx.GetContext(ctx, db, &version, d.SelectVersion)
	if err != nil && Classify(err) != NoTable {
		return nil, fmt.Errorf("read the schema's version: %w", err)
	}
	var pending []Script
	for i := version; i < len(d.scripts); i++ {
		pending = append(pending, Script{i + 1, d.recorded(i)})
	}
	if len(pending) > 0 {
		pending[0].DDL = d.CreateVersions + ";\n\n" + pending[0].DDL
		if err := d.hides(ctx, db); err != nil {
			return nil, err
		}
		if err := d.misread(ctx, db); err != nil {
			return nil, err
		}
	}
	return pending, nil
}

// hides returns an error if new tables would hide those that there are: PostgreSQL finds a table in any schema of the search path,
// and makes it in the first.
func (d *Dialect) hides(ctx context.Context, db sqlx.QueryerContext) error {
	if d.SelectHidden == "" {
		return nil
	}
	var has, first string
	switch err := db.QueryRowxContext(ctx, d.SelectHidden).Scan(&has, &first); {
	case errors.Is(err, sql.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("look for tables in the search path: %w", err)
	}
	return fmt.Errorf("the tables are in schema %q, and new ones would be made in %q, which comes before it in the search path: "+
		"set Config.Schema to the one that is meant", has, first)
}

// lacks returns an error if there is no such schema as the user has named.
func (d *Dialect) lacks(ctx context.Context, db sqlx.QueryerContext) error {
	if d.SelectLacking == "" {
		return nil
	}
	var schema string
	switch err := db.QueryRowxContext(ctx, d.SelectLacking).Scan(&schema); {
	case errors.Is(err, sql.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("look for the schema: %w", err)
	}
	return fmt.Errorf("there is no schema %q: create it, or leave Config.Schema empty", schema)
}

// misread returns an error if the server would read our statements as another SQL.
func (d *Dialect) misread(ctx context.Context, db sqlx.QueryerContext) error {
	if d.Name != MySQLName {
		return nil
	}
	settings, err := d.Settings(ctx, db)
	if err != nil {
		return fmt.Errorf("read the settings: %w", err)
	}
	if slices.Contains(strings.Split(settings["sql_mode"], ","), "ORACLE") {
		return errors.New("sql_mode has ORACLE, with which the server reads another SQL: remove it on the server, " +
			"or put sql_mode=%27TRADITIONAL%27 into the connection string")
	}
	return nil
}

// Migrate brings the schema up to this release. It is idempotent, and several processes may call it
// at the same time: PostgreSQL and SQLite migrate in one locked transaction; on MySQL, whose
// DDL commits by itself, each statement does nothing the second time. If the schema is that of this release,
// the role needs no right to make tables.
func (d *Dialect) Migrate(ctx context.Context, db *sqlx.DB) error {
	if err := d.lacks(ctx, db); err != nil {
		return err
	}
	if hides := d.hides(ctx, db); hides != nil {
		if pending, err := d.Pending(ctx, db); err != nil || len(pending) == 0 {
			return err
		}
		return hides
	}
	const tries = 10
	err := d.migrateOnce(ctx, db)
	for range tries - 1 {
		if Classify(err) != Contention || d.rest(ctx) != nil {
			break
		}
		err = d.migrateOnce(ctx, db)
	}
	if !Denied(err) {
		return err
	}
	pending, failed := d.Pending(ctx, db)
	if failed == nil && len(pending) == 0 {
		return nil
	}
	return fmt.Errorf("%s: %w", d.mayNotMigrate(ctx, db), err)
}

// mayNotMigrate says what helps a role that may not change the schema.
func (d *Dialect) mayNotMigrate(ctx context.Context, db *sqlx.DB) string {
	role := "…"
	_ = db.GetContext(ctx, &role, d.SelectRole) // what follows tells without it, too
	rights := "GRANT USAGE, CREATE ON SCHEMA … TO " + role + ", and GRANT it the owner of the tables, if there are some"
	if d.Name == MySQLName {
		rights = "GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP, CREATE VIEW ON … TO " + role + ", with the name of the database as …"
	}
	return fmt.Sprintf("the schema must be brought to version %d, which the role %s may not do: run millrace migrate as a role that may, "+
		"or apply what millrace migrate --dry-run prints; or %s", d.Version(), role, rights)
}

func (d *Dialect) migrateOnce(ctx context.Context, db *sqlx.DB) (err error) {
	if d.CommitsOnDDL {
		return d.migrateBriefly(ctx, db)
	}
	if d.OneWriter { // the table must exist before the first write takes the lock
		if _, err := db.ExecContext(ctx, d.CreateVersions); err != nil {
			return fmt.Errorf("create the table of versions: %w", err)
		}
	}
	options := &sql.TxOptions{Isolation: sql.LevelReadCommitted} // to see what others committed before we got the lock
	if d.OneWriter {
		options = nil
	}
	tx, err := owned.Begin(ctx, db, options, d.OneWriter)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, tx.Rollback())
		}
	}()
	if _, err := tx.ExecContext(ctx, d.LockMigrations); err != nil {
		return fmt.Errorf("lock the schema: %w", err)
	}
	if _, err := tx.ExecContext(ctx, d.CreateVersions); err != nil {
		return fmt.Errorf("create the table of versions: %w", err)
	}
	if err := d.apply(ctx, tx.Tx); err != nil {
		return err
	}
	return tx.Commit()
}

// migrateBriefly gives up when it has waited 10 s for the transactions that use a table: MySQL waits for a year, and
// MariaDB for a day, and all who come later wait behind it.
func (d *Dialect) migrateBriefly(ctx context.Context, db *sqlx.DB) error {
	conn, err := db.Connx(ctx)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close() //nolint:errcheck // it is closed already where it could not be set back
	var limit int64
	if err := conn.GetContext(ctx, &limit, `SELECT @@SESSION.lock_wait_timeout`); err != nil {
		return fmt.Errorf("read the limit of waits: %w", err)
	}
	set := func(seconds int64) error {
		_, err := conn.ExecContext(ctx, fmt.Sprintf("SET SESSION lock_wait_timeout = %d", seconds))
		return err
	}
	if err := set(min(limit, 10)); err != nil {
		return fmt.Errorf("set the limit of waits: %w", err)
	}
	defer func() {
		if set(limit) != nil {
			_ = conn.Raw(func(any) error { return driver.ErrBadConn }) // makes database/sql close the connection
		}
	}()
	if _, err := conn.ExecContext(ctx, d.CreateVersions); err != nil {
		return fmt.Errorf("create the table of versions: %w", err)
	}
	return d.apply(ctx, conn)
}

// session is a transaction, or a connection.
type session interface {
	sqlx.QueryerContext
	sqlx.ExecerContext
}

// rest lets those go on who wait behind a migration that gave up.
func (d *Dialect) rest(ctx context.Context) error {
	if !d.CommitsOnDDL {
		return nil
	}
	select {
	case <-time.After(time.Second):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (d *Dialect) apply(ctx context.Context, db session) error {
	var version int
	if err := sqlx.GetContext(ctx, db, &version, d.SelectVersion); err != nil {
		return fmt.Errorf("read the schema's version: %w", err)
	}
	if version < len(d.scripts) {
		if err := d.misread(ctx, db); err != nil {
			return err
		}
	}
	for i := version; i < len(d.scripts); i++ {
		for _, statement := range statements(d.scripts[i]) {
			if err := d.execute(ctx, db, statement); err != nil {
				return fmt.Errorf("migration %d: %w\n%s", i+1, err, statement)
			}
		}
		if _, err := db.ExecContext(ctx, d.InsertVersion, i+1); err != nil {
			return fmt.Errorf("record migration %d: %w", i+1, err)
		}
	}
	return nil
}

// execute carries out a statement of a migration. Where DDL commits by itself, what it adds may be there: an earlier run was
// cut off, or somebody has made it beforehand. The server then adds nothing of what else the statement adds.
func (d *Dialect) execute(ctx context.Context, db session, statement string) error {
	_, err := db.ExecContext(ctx, statement)
	if !d.CommitsOnDDL || !alreadyMade(err) {
		return err
	}
	const add = "\n  ADD "
	table, added, _ := strings.Cut(statement, add)
	clauses := strings.Split(added, ","+add)
	if len(clauses) == 1 {
		return nil
	}
	for _, clause := range clauses {
		if _, err := db.ExecContext(ctx, table+add+clause); err != nil && !alreadyMade(err) {
			return err
		}
	}
	return nil
}

func statements(script string) []string {
	var all []string
	for s := range strings.SplitSeq(script, ";\n") {
		if strings.TrimSpace(s) != "" {
			all = append(all, s)
		}
	}
	return all
}
