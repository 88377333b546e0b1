package dialect

import (
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestNoStatementStandsTwice: what two databases say alike is common, and what is common is said by two.
func TestNoStatementStandsTwice(t *testing.T) {
	shared := written(common)
	own := map[string]map[string]string{
		PostgresName: written(postgres), MySQLName: written(mysql), SQLiteName: written(sqlite),
	}
	require.Greater(t, len(shared), 100)
	for field, text := range shared {
		like := len(own)
		by := map[string]string{}
		if text != "" {
			by[text] = "common"
		}
		for name, differences := range own {
			other := differences[field]
			if other == "" {
				continue
			}
			like--
			assert.Empty(t, by[other], "%s says %s like this one: let it stand once", name, field)
			by[other] = name
		}
		if text != "" {
			assert.GreaterOrEqual(t, like, 2, "%s is common, though at most one database says it", field)
		}
	}
}

// written returns the statements by their names, whatever their spaces and placeholders.
func written(d Dialect) map[string]string {
	all := map[string]string{}
	var add func(group string, v reflect.Value)
	add = func(group string, v reflect.Value) {
		for i := range v.NumField() {
			switch f := v.Type().Field(i); {
			case !f.IsExported():
			case f.Type.Kind() == reflect.Struct:
				add(f.Name+".", v.Field(i))
			case f.Type.Kind() == reflect.String:
				all[group+f.Name] = plain(v.Field(i).String())
			}
		}
	}
	add("", reflect.ValueOf(d))
	return all
}

var placeholder = regexp.MustCompile(`\?\d*|\$\d+`)

func plain(statement string) string {
	n := 0
	statement = placeholder.ReplaceAllStringFunc(statement, func(p string) string {
		if n++; p == "?" {
			return "$" + strconv.Itoa(n)
		}
		return "$" + p[1:]
	})
	return strings.Join(strings.Fields(statement), " ")
}
