package checkup

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace-go/millrace/internal/dialect"
)

// needs returns the rights on a table that a service needs. Some are not asked for: only Migrate writes the versions
// of the schema, and an operator may keep the audit from being changed.
func (c *Checkup) needs(table string) []string {
	switch strings.TrimPrefix(table, c.TablePrefix) {
	case "schema":
		return []string{"SELECT"}
	case "audit", "audit_messages":
		return []string{"SELECT", "INSERT"}
	}
	return []string{"SELECT", "INSERT", "UPDATE", "DELETE"}
}

// every are the tables that every inbox uses.
var every = []string{"schema", "consumers", "claims", "messages", "results", "outcomes", "journal", "history"}

// vital reports whether the service needs the table. A queue moves the steps of its messages when their keys change, whether
// there are any or not. Rights on the tables that are not vital are missed by a gate, steps, leases, replays and the outbox,
// which a service may do without, and by the background work, which logs it.
func (c *Checkup) vital(table string) bool {
	name := strings.TrimPrefix(table, c.TablePrefix)
	return slices.Contains(every, name) || c.Blobs && name == "blobs" || c.Queue && name == "steps"
}

// askRights asks MySQL for what its catalogue does not tell: whether a table is missing, or hidden from a role without
// a right on it, and on which tables the role may DELETE.
func (c *Checkup) askRights(ctx context.Context, wanted []dialect.Table, live map[string]*liveTable) error {
	if c.Dialect.Name != dialect.MySQLName {
		return nil
	}
	var shown []string
	for _, table := range wanted {
		if live[table.Name] != nil {
			shown = append(shown, table.Name)
			continue
		}
		switch err := c.may(ctx, "SELECT 1 FROM "+table.Name); {
		case dialect.Denied(err) && !c.behind(ctx): // MySQL says so of a table that is missing, too
			live[table.Name] = &liveTable{hidden: true}
		case dialect.Denied(err):
		case dialect.Classify(err) != dialect.NoTable && err != nil:
			return err
		}
	}
	return c.askDelete(ctx, shown, live)
}

// behind reports whether the schema is known to be older than this release.
func (c *Checkup) behind(ctx context.Context) bool {
	var version int
	err := c.DB.GetContext(ctx, &version, c.Dialect.SelectVersion)
	return err == nil && version < c.Dialect.Version()
}

// askDelete notes which of tables the role may DELETE from. It asks for all at once and, if that is denied, for each.
func (c *Checkup) askDelete(ctx context.Context, tables []string, live map[string]*liveTable) error {
	if len(tables) == 0 {
		return nil
	}
	statement := "DELETE FROM " + tables[0]
	if len(tables) > 1 {
		all := strings.Join(tables, ", ")
		statement = "DELETE " + all + " FROM " + all // which needs SELECT too
	}
	switch err := c.may(ctx, statement); {
	case err == nil, dialect.Classify(err) == dialect.ReadOnly: // the trial says so
		for _, table := range tables {
			live[table].rights = append(live[table].rights, "delete")
		}
		return nil
	case !dialect.Denied(err):
		return err
	case len(tables) == 1:
		return nil
	}
	for _, table := range tables {
		if err := c.askDelete(ctx, []string{table}, live); err != nil {
			return err
		}
	}
	return nil
}

// may returns an error if the role may not run the statement, which is not run.
func (c *Checkup) may(ctx context.Context, statement string) error {
	rows, err := c.DB.QueryContext(ctx, "EXPLAIN "+statement+" WHERE FALSE")
	if err != nil {
		return err
	}
	defer rows.Close() //nolint:errcheck // rows.Err tells
	for rows.Next() {
	}
	return rows.Err()
}

// lack is rights that the role lacks on some tables.
type lack struct {
	rights string
	vital  bool
}

// rights reports whether the role lacks rights without which no inbox works. Each finding is of the tables that lack
// the same.
func (c *Checkup) rights(ctx context.Context, wanted []dialect.Table, live map[string]*liveTable) (lacks bool, err error) {
	of := make(map[lack][]string)
	var order []lack
	for _, table := range wanted {
		is, found := live[table.Name]
		if !found {
			continue
		}
		missing := slices.DeleteFunc(c.needs(table.Name), func(right string) bool {
			return slices.Contains(is.rights, strings.ToLower(right))
		})
		if len(missing) == 0 {
			continue
		}
		what := lack{strings.Join(missing, ", "), c.vital(table.Name)}
		if of[what] == nil {
			order = append(order, what)
		}
		of[what] = append(of[what], table.Name)
	}
	if len(order) == 0 {
		return false, nil
	}
	var role string
	if err := c.DB.GetContext(ctx, &role, c.Dialect.SelectRole); err != nil {
		return false, fmt.Errorf("ask for the role: %w", err)
	}
	for _, what := range order {
		problem := fmt.Sprintf("the role %s lacks %s on %s", role, what.rights, strings.Join(of[what], ", "))
		remedy := c.grants(what.rights, of[what], role)
		if lacks = lacks || what.vital; what.vital {
			c.fail("privileges", problem, remedy)
		} else {
			c.warn("privileges", problem+", which an inbox alone can do without", remedy)
		}
	}
	return lacks, nil
}

// grants returns the statement that mends it. MySQL takes one for each table.
func (c *Checkup) grants(rights string, tables []string, role string) string {
	schema, between := "", ", "
	if c.Schema != "" {
		schema = `"` + c.Schema + `".`
	}
	if c.Dialect.Name == dialect.MySQLName {
		between = " TO " + role + "; GRANT " + rights + " ON "
	}
	return "GRANT " + rights + " ON " + schema + strings.Join(tables, between+schema) + " TO " + role
}
