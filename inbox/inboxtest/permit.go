package inboxtest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/millrace-go/millrace/internal/dialect"
)

// namesOf asks a server for the name of the database whose tables would be dropped: a DSN may name
// it differently, or not at all.
var namesOf = map[string]string{
	dialect.PostgresName: `SELECT current_database(), current_schema()`,
	dialect.MySQLName:    `SELECT DATABASE(), ''`,
	dialect.SQLiteName:   `SELECT file, '' FROM pragma_database_list WHERE name = 'main'`,
}

// permit returns an error unless the database may be emptied: its name contains the word test, or the
// scenario sets DropAll.
func (p *place) permit(ctx context.Context, db Database) error {
	if db.DropAll {
		return nil
	}
	d, err := dialect.Of(p.plain, "", dialect.Names{})
	if err != nil {
		return err
	}
	var name, schema sql.NullString
	if err := p.plain.QueryRowContext(ctx, namesOf[d.Name]).Scan(&name, &schema); err != nil {
		return fmt.Errorf("ask for the name of the database: %w", err)
	}
	switch {
	case name.String == "" && d.Name == dialect.SQLiteName:
		return nil // in memory
	case name.String == "":
		return errors.New("the DSN names no database")
	case d.Name == dialect.SQLiteName:
		name.String = filepath.Base(name.String)
	}
	if saysTest(name.String) || saysTest(schema.String) {
		return nil
	}
	what := fmt.Sprintf("database %q", name.String)
	if schema.String != "" {
		what += fmt.Sprintf(", schema %q", schema.String)
	}
	return fmt.Errorf("%s: nothing was changed there. Each play first drops all tables, so the name must contain "+
		"the word test, as in shop_test; or set Database.DropAll if nothing in it is needed", what)
}

var (
	hump = regexp.MustCompile(`(\p{Ll})(\p{Lu})`)
	word = regexp.MustCompile(`\p{L}+`)
)

// saysTest reports whether a name contains the word test; latest and testimonials do not.
func saysTest(name string) bool {
	words := word.FindAllString(strings.ToLower(hump.ReplaceAllString(name, "$1 $2")), -1)
	return slices.ContainsFunc(words, func(w string) bool {
		return w == "test" || w == "tests" || w == "testing" || w == "testdb"
	})
}
