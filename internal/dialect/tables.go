package dialect

import (
	"regexp"
	"slices"
	"strings"
)

// Table is a table of the schema.
type Table struct {
	Name    string // without a schema
	Columns []string
}

var (
	createTable = regexp.MustCompile(`(?s)^CREATE TABLE (?:IF NOT EXISTS )?(\S+) \((.*)\)`)
	addColumn   = regexp.MustCompile(`^ALTER TABLE (\S+) ADD COLUMN (?:IF NOT EXISTS )?(\w+)`)
	column      = regexp.MustCompile(`(?:^|[\n,(])\s*([a-z]\w*) +[A-Z]`)
	comment     = regexp.MustCompile(`--[^\n]*`)
)

// Tables returns the tables of this release's schema in the order of their creation. The
// caller must not change them.
func (d *Dialect) Tables() []Table { return d.read() }

// readTables parses the scripts, so that no list beside them must be kept.
func (d *Dialect) readTables() []Table {
	var tables []Table
	for _, script := range append([]string{d.CreateVersions}, d.scripts...) {
		script = comment.ReplaceAllString(script, "")
		for _, statement := range statements(script) {
			statement = strings.TrimSpace(statement)
			if m := createTable.FindStringSubmatch(statement); m != nil {
				t := Table{Name: bare(m[1])}
				for _, c := range column.FindAllStringSubmatch(m[2], -1) {
					t.Columns = append(t.Columns, c[1])
				}
				tables = append(tables, t)
			}
			if m := addColumn.FindStringSubmatch(statement); m != nil {
				i := slices.IndexFunc(tables, func(t Table) bool { return t.Name == bare(m[1]) })
				tables[i].Columns = append(tables[i].Columns, m[2])
			}
		}
	}
	return tables
}

var createView = regexp.MustCompile(`(?m)^CREATE (?:OR REPLACE )?(VIEW|FUNCTION) ([^\s(]+)`)

// DropViews returns the statements that drop the views, and the functions that they use.
func (d *Dialect) DropViews() []string {
	var drops []string
	for _, script := range d.scripts {
		for _, m := range createView.FindAllStringSubmatch(script, -1) {
			drops = append(drops, "DROP "+m[1]+" IF EXISTS "+m[2])
		}
	}
	slices.Reverse(drops) // later ones use earlier ones
	return drops
}

func bare(name string) string { return name[strings.LastIndexByte(name, '.')+1:] }
