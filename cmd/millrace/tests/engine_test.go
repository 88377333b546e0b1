package tests_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/servers"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestCheckOfAnEngine: which features can be unfit, and when, is tested beside them.
func TestCheckOfAnEngine(t *testing.T) {
	t.Parallel()
	args := []string{"check", "--engine"}
	for _, dialect := range []string{"postgres", "mysql"} {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			db := testdb.On(t, dialect, testdb.Empty())
			goldenOf(t, "check-engine-"+dialect, args, call(t, db.DSN, args...))
			r := call(t, db.DSN, "check", "--engine", "--json", "--node", db.Open(t).DSN)
			assert.Zero(t, r.code, r.err)
			var printed struct {
				Features []struct{ Feature, Verdict, For string }
			}
			require.NoError(t, json.Unmarshal([]byte(r.out), &printed))
			assert.Greater(t, len(printed.Features), 10)
			assert.Equal(t, "fit", printed.Features[0].Verdict)
		})
	}
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		db := testdb.On(t, "sqlite")
		golden(t, "check-engine-sqlite", args, call(t, db.DSN, args...))
		golden(t, "check-node", []string{"check", "--node", "x"}, call(t, db.DSN, "check", "--node", "x"))
	})
}

// TestCheckOfAnEngineBehindAPooler: what is optional is no error without --strict.
func TestCheckOfAnEngineBehindAPooler(t *testing.T) {
	testdb.Turn(t, 1, long)
	t.Parallel()
	pg := servers.Postgres(t).DSN()
	bouncer := servers.PgBouncer(t, pg)
	args := []string{"check", "--engine"}
	goldenOf(t, "check-engine-pooler", args, call(t, bouncer.DSN(), args...))
	assert.Equal(t, 1, call(t, bouncer.DSN(), "check", "--engine", "--strict").code)
	late := testdb.At(t, "postgres", pg, testdb.Params("lock_timeout", "10")).DSN
	goldenOf(t, "check-engine-unfit", args, call(t, late, args...))
}
