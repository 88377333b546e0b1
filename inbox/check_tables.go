package inbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/keycode"
)

const migrate = "run Store.Migrate or apply Store.Schema()"

// stored is how each database keeps a table that survives a crash.
var stored = map[string]string{"postgres": "permanent", "mysql": "innodb", "sqlite": "file"}

// tables compares what is there with what this release expects.
func (c *checkup) tables(ctx context.Context) error {
	s := c.store
	live, storage, err := c.liveTables(ctx)
	if err != nil {
		return fmt.Errorf("read the tables: %w", err)
	}
	wanted := s.dialect.Tables()
	if len(live) == 0 {
		c.fail("tables", fmt.Sprintf("there is no table that starts with %q", s.config.TablePrefix), migrate)
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
		if kind := storage[table.Name]; kind != stored[s.dialect.Name] {
			c.fail(table.Name, fmt.Sprintf("the table is kept as %q, which does not survive a crash with what it "+
				"was committed with", kind), restore[s.dialect.Name])
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
	"postgres": "ALTER TABLE … SET LOGGED, or make the tables anew",
	"mysql":    "ALTER TABLE … ENGINE = InnoDB",
}

func (c *checkup) liveTables(ctx context.Context) (columns map[string][]string, storage map[string]string, err error) {
	rows, err := c.store.db.QueryContext(ctx, c.store.dialect.SelectColumns)
	if err != nil {
		return nil, nil, err
	}
	defer rows.Close() //nolint:errcheck // rows.Err tells
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

// version compares the schema's version. One release newer is made to work with this one.
func (c *checkup) version(ctx context.Context) error {
	s := c.store
	var version int
	if err := s.db.GetContext(ctx, &version, s.dialect.SelectVersion); err != nil {
		return fmt.Errorf("read the schema's version: %w", err)
	}
	subject := s.config.TablePrefix + "schema"
	switch known := s.dialect.Version(); {
	case version < known:
		c.fail(subject, fmt.Sprintf("the schema has version %d, this release needs %d", version, known), migrate)
	case version > known+1:
		c.warn(subject, fmt.Sprintf("the schema has version %d, this release knows %d", version, known),
			"update this service: only adjacent releases are made to work with one schema")
	}
	return nil
}

// errTrialOver rolls the trial back.
var errTrialOver = errors.New("the trial is over")

// trial claims a key twice, as a delivery and its copy would, in a transaction that is
// rolled back: so a missing privilege, a read-only server and a table without its primary
// key are found before a message is.
func (c *checkup) trial(ctx context.Context) error {
	if c.failed() {
		return nil
	}
	s := c.store
	const nobody = 0 // consumers have positive ids
	key := keycode.Encode(fmt.Sprintf("check %x %x", rand.Uint64(), rand.Uint64()))
	won := make([]bool, 0, 2)
	err := s.write(ctx, func(tx *sqlx.Tx) error {
		won = won[:0]
		for token := range int64(2) {
			rows, err := affected(tx.ExecContext(ctx, s.dialect.Claim, nobody, key, 0, token+1))
			if err != nil {
				return err
			}
			won = append(won, rows == 1)
		}
		return errTrialOver
	})
	claims := s.config.TablePrefix + "claims"
	switch kind := dialect.Classify(err); {
	case errors.Is(err, errTrialOver) && won[0] && !won[1]:
		return nil
	case errors.Is(err, errTrialOver):
		c.fail(claims, fmt.Sprintf("a key claimed twice was won %v, not once", won),
			"its primary key must be (consumer, message_id): compare the table with Store.Schema()")
	case ctx.Err() != nil || kind == dialect.Unavailable || kind == dialect.Contention:
		return fmt.Errorf("try a claim: %w", err)
	case kind == dialect.ReadOnly:
		c.fail("server", fmt.Sprintf("it takes no writes (%v)", err), "give the inbox the primary server, "+
			"a user who may write, and a connection string that does not ask for read-only")
	default:
		c.fail(claims, fmt.Sprintf("a trial claim failed (%v)", err),
			"let the user SELECT, INSERT, UPDATE and DELETE on all tables, and compare them with Store.Schema()")
	}
	return nil
}
