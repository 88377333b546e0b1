package inboxtest_test

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/inboxtest"
	"github.com/millrace-go/millrace/tests/testdb"
)

// A handler gets every result set of a query, and what the driver knows of its columns, as it does without the kit.
func TestTheRowsOfAQuery(t *testing.T) {
	for dialect, query := range map[string]string{
		"mysql":    `SELECT CAST(7 AS DECIMAL(10, 2)) AS share; SELECT 'a' AS name UNION ALL SELECT 'b'`,
		"postgres": `SELECT balance, CAST(1.5 AS NUMERIC(10, 2)) AS share, CAST('a' AS VARCHAR(7)) AS name FROM accounts`,
		"sqlite":   `SELECT balance, 'a' AS name FROM accounts`,
	} {
		params := map[string][]string{"mysql": {"multiStatements", "true"}}
		t.Run(dialect, func(t *testing.T) {
			var want, got []any
			s := accounts(handled(func(p *inboxtest.Process, msg *message.Message) (err error) {
				got, err = described(msg.Context(), p.DB, query)
				return errors.Join(err, addInTx(msg))
			}))
			prepare := s.Prepare
			s.Prepare = func(ctx context.Context, db *sqlx.DB) error {
				err := prepare(ctx, db)
				if err == nil {
					want, err = described(ctx, db, query)
				}
				return err
			}
			if dialect != "sqlite" {
				db := testdb.On(t, dialect, testdb.Empty(), testdb.Params(params[dialect]...))
				s.Databases = []inboxtest.Database{{Driver: db.Driver, DSN: db.DSN}}
			}
			inboxtest.Replay(t, s, "crash before m1 COMMIT")
			assert.NotEmpty(t, want)
			assert.Equal(t, want, got)
		})
	}
}

// described returns the types of the columns of each result set of a query, and how many rows it has.
func described(ctx context.Context, db *sqlx.DB, query string) ([]any, error) {
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // only read from
	var all []any
	for more := true; more; more = rows.NextResultSet() {
		types, err := rows.ColumnTypes()
		if err != nil {
			return nil, err
		}
		for _, c := range types {
			all = append(all, typeOf(c))
		}
		n := 0
		for rows.Next() {
			n++
		}
		all = append(all, n)
	}
	return all, rows.Err()
}

func typeOf(c *sql.ColumnType) []any {
	nullable, knowsNullable := c.Nullable()
	length, knowsLength := c.Length()
	precision, scale, knowsScale := c.DecimalSize()
	return []any{c.Name(), c.DatabaseTypeName(), c.ScanType().String(), nullable, knowsNullable, length, knowsLength, precision, scale, knowsScale}
}

// hasOne plays s on a database, where a table must have one row at the end.
func hasOne(t *testing.T, s *inboxtest.Scenario, dialect, table string) {
	t.Helper()
	db := testdb.On(t, dialect, testdb.Empty())
	s.Databases = []inboxtest.Database{{Driver: db.Driver, DSN: db.DSN, DropAll: dialect == "sqlite"}}
	s.Ledger = func(ctx context.Context, db *sqlx.DB) (any, error) {
		var rows int
		return rows, db.GetContext(ctx, &rows, `SELECT COUNT(*) FROM `+table)
	}
	s.Want = 1
}

// What Prepare has stored is there in each play, also where deleting a parent deletes its children.
func TestRowsBehindAForeignKey(t *testing.T) {
	for _, dialect := range []string{"mysql", "postgres"} {
		t.Run(dialect, func(t *testing.T) {
			s := accounts(right)
			prepare := s.Prepare
			s.Prepare = func(ctx context.Context, db *sqlx.DB) error {
				err := prepare(ctx, db)
				for _, statement := range []string{
					`CREATE TABLE account_rules (account INTEGER PRIMARY KEY, FOREIGN KEY (account) REFERENCES accounts (id) ON DELETE CASCADE)`,
					`INSERT INTO account_rules (account) VALUES (1)`,
				} {
					if err == nil {
						_, err = db.ExecContext(ctx, statement)
					}
				}
				return err
			}
			hasOne(t, &s, dialect, "account_rules")
			inboxtest.CrashAfterCommit(t, s)
		})
	}
}

// What Prepare has stored is there once in each play, also where storing a row stores another one.
func TestRowsThatMakeOthers(t *testing.T) {
	for name, c := range map[string]struct {
		dialect string
		ddl     []string
	}{
		"a trigger of PostgreSQL": {"postgres", []string{
			`CREATE TABLE counted (id INTEGER)`,
			`CREATE OR REPLACE FUNCTION count_rule() RETURNS TRIGGER LANGUAGE plpgsql AS 'BEGIN INSERT INTO counted (id) VALUES (NEW.id); RETURN NEW; END'`,
			`CREATE TRIGGER count_rule AFTER INSERT ON rules FOR EACH ROW EXECUTE FUNCTION count_rule()`,
		}},
		"a rule of PostgreSQL": {"postgres", []string{
			`CREATE TABLE counted (id INTEGER)`,
			`CREATE RULE count_rule AS ON INSERT TO rules DO ALSO INSERT INTO counted (id) VALUES (NEW.id)`,
		}},
		"a trigger of MySQL": {"mysql", []string{
			`CREATE TABLE counted (id INTEGER)`,
			`CREATE TRIGGER count_rule AFTER INSERT ON rules FOR EACH ROW INSERT INTO counted (id) VALUES (NEW.id)`,
		}},
		"a trigger of SQLite": {"sqlite", []string{
			`CREATE TABLE counted (id INTEGER)`,
			`CREATE TRIGGER count_rule AFTER INSERT ON rules BEGIN INSERT INTO counted (id) VALUES (NEW.id); END`,
		}},
		"a partition": {"postgres", []string{
			`CREATE TABLE counted (id INTEGER) PARTITION BY LIST (id)`,
			`CREATE TABLE counted_1 PARTITION OF counted FOR VALUES IN (1)`,
			`INSERT INTO counted (id) VALUES (1)`,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := accounts(right)
			prepare := s.Prepare
			s.Prepare = func(ctx context.Context, db *sqlx.DB) error {
				err := prepare(ctx, db)
				for _, statement := range slices.Concat([]string{`CREATE TABLE rules (id INTEGER)`}, c.ddl, []string{`INSERT INTO rules (id) VALUES (1)`}) {
					if err == nil {
						_, err = db.ExecContext(ctx, statement)
					}
				}
				return err
			}
			hasOne(t, &s, c.dialect, "counted")
			inboxtest.Duplicate(t, s)
		})
	}
}

// A table that the service makes by itself is empty at the beginning of each play.
func TestATableThatTheServiceMakes(t *testing.T) {
	s := accounts(right)
	service := s.Service
	s.Service = func(p *inboxtest.Process) error {
		_, err := p.DB.ExecContext(t.Context(), `CREATE TABLE IF NOT EXISTS starts (id INTEGER PRIMARY KEY)`)
		if err == nil {
			_, err = p.DB.ExecContext(t.Context(), `INSERT INTO starts (id) SELECT COUNT(*) + 1 FROM starts`)
		}
		return errors.Join(err, service(p))
	}
	hasOne(t, &s, "postgres", "starts")
	inboxtest.Duplicate(t, s)
}

// What Prepare makes can be made again: tables and types, of whatever kind.
func TestATypeThatPrepareMakes(t *testing.T) {
	db := testdb.On(t, "postgres", testdb.Empty())
	s := accounts(right)
	prepare := s.Prepare
	s.Prepare = func(ctx context.Context, db *sqlx.DB) error {
		_, err := db.ExecContext(ctx, `
			CREATE TYPE "Coin" AS ENUM ('eur');
			CREATE TYPE coins AS (coin "Coin", number INTEGER);
			CREATE TYPE span AS RANGE (subtype = INTEGER);
			CREATE DOMAIN amount AS INTEGER CHECK (VALUE > 0);
			CREATE TABLE purses (coins coins, amount amount, span span)`)
		return errors.Join(err, prepare(ctx, db))
	}
	s.Databases = []inboxtest.Database{{Driver: db.Driver, DSN: db.DSN}}
	for range 2 {
		inboxtest.Duplicate(t, s)
	}
}

// The transaction of a process that dies ends with it, whatever it has prepared.
func TestADeadProcessHoldsNoLock(t *testing.T) {
	s := accounts(handled(func(_ *inboxtest.Process, msg *message.Message) error {
		tx, err := inbox.Tx(msg.Context())
		if err != nil {
			return err
		}
		booking := `UPDATE accounts SET balance = balance + ` + string(msg.Payload) + ` WHERE id = 1`
		add, err := tx.PrepareContext(msg.Context(), booking) //nolint:sqlclosecheck // the transaction closes it
		if err != nil {
			return err
		}
		_, err = add.ExecContext(msg.Context())
		return err
	}))
	inboxtest.CrashBeforeCommit(t, s)
}
