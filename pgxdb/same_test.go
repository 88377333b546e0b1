package pgxdb_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/testdb"
)

// FuzzSameAsPgx makes the same calls through pgx's driver and through this one: they have the same results and errors, and
// leave the same rows.
func FuzzSameAsPgx(f *testing.F) {
	db := testdb.On(f, "postgres")
	pools := pair(f, db)
	for seed := range uint64(200) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		var told [2]string
		for i, pool := range pools {
			prepare(t, pool)
			told[i] = calls(t, pool, rand.New(rand.NewPCG(seed, 1))) //nolint:gosec // a test that can be repeated
		}
		require.Equal(t, told[0], told[1])
	})
}

// pair is a pool of each driver, on tables of their own.
func pair(t testing.TB, db *testdb.DB) (pools [2]*sqlx.DB) {
	t.Helper()
	for i, driver := range []string{"pgx", "pgxdb"} {
		schema := "same_" + driver
		db.Do(t, "CREATE SCHEMA "+schema)
		pool, err := sqlx.Open(driver, db.DSN+"&search_path="+schema)
		require.NoError(t, err)
		pool.SetMaxOpenConns(1)
		t.Cleanup(func() { require.NoError(t, pool.Close()) })
		pools[i] = pool
	}
	return pools
}

func prepare(t testing.TB, pool *sqlx.DB) {
	t.Helper()
	_, err := pool.ExecContext(t.Context(), `DROP TABLE IF EXISTS work; CREATE TABLE work (n INT PRIMARY KEY, word TEXT)`)
	require.NoError(t, err)
}

// calls makes some calls and returns what they returned.
func calls(t *testing.T, pool *sqlx.DB, chance *rand.Rand) string {
	t.Helper()
	var told strings.Builder
	for range 3 {
		tx(t, pool, chance, &told)
	}
	var rows []string
	require.NoError(t, pool.SelectContext(t.Context(), &rows, `SELECT n || '=' || word FROM work ORDER BY n`))
	fmt.Fprintln(&told, "rows:", rows)
	return told.String()
}

func tx(t *testing.T, pool *sqlx.DB, chance *rand.Rand, told *strings.Builder) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	aborted := false // pgx may refuse an argument by itself then, or let the server refuse the statement
	say := func(what string, result any, err error) {
		var answer *pgconn.PgError
		switch {
		case err != nil && aborted && what != "commit":
			fmt.Fprintf(told, "%s: refused\n", what)
		default:
			fmt.Fprintf(told, "%s: %v, %v\n", what, result, err)
		}
		aborted = aborted && err != nil || errors.As(err, &answer)
	}
	options := []*sql.TxOptions{nil, {Isolation: sql.LevelSerializable}, {ReadOnly: true}, {Isolation: sql.LevelLinearizable}, nil, nil}
	tx, err := pool.BeginTxx(ctx, options[chance.IntN(len(options))])
	say("begin", tx != nil, err)
	if err != nil {
		return
	}
	defer func() { _ = tx.Rollback() }()
	exec := func(query string, args ...any) {
		result, err := tx.ExecContext(ctx, query, args...)
		var n int64
		if err == nil {
			n, _ = result.RowsAffected()
		}
		say(query, n, err)
	}
	for range chance.IntN(6) {
		n := chance.IntN(8)
		switch chance.IntN(16) {
		case 0, 1, 2:
			exec(`INSERT INTO work VALUES ($1, $2)`, n, "word")
		case 3:
			exec(`INSERT INTO work VALUES ($1, 'x') ON CONFLICT DO NOTHING`, n)
		case 4:
			exec(`UPDATE work SET word = $2 WHERE n > $1`, n, fmt.Sprint(n))
		case 5:
			var rows []int
			err := tx.SelectContext(ctx, &rows, `DELETE FROM work WHERE n < $1 RETURNING n`, n)
			say("delete", rows, err)
		case 6:
			exec(`SAVEPOINT here`)
		case 7:
			exec(`ROLLBACK TO SAVEPOINT here`)
		case 8:
			exec(`INSERT INTO nowhere VALUES ($1)`, n)
		case 9:
			exec(`INSERT INTO work VALUES ($1, $2)`, "no number", n)
		case 10:
			exec([]string{`COMMIT`, `ROLLBACK`, `this is no statement`, `INSERT INTO work VALUES (100, 'a'); INSERT INTO work VALUES (101, 'b')`}[chance.IntN(4)])
		case 11:
			stmt, err := tx.PreparexContext(ctx, `INSERT INTO work VALUES ($1, $2)`)
			say("prepare", stmt != nil, err)
			if err == nil {
				_, err = stmt.ExecContext(ctx, n, "prepared")
				say("prepared", 0, err)
				require.NoError(t, stmt.Close()) //nolint:sqlclosecheck // there are more of them
			}
		case 12:
			exec(`SELECT 1 / $1::INT`, 0)
		case 13:
			exec(`UPDATE work SET word = 'all'`)
		case 14:
			exec(`INSERT INTO work VALUES ($1)`, n, "one too many")
		case 15:
			var row int
			err := tx.GetContext(ctx, &row, `SELECT COUNT(*) FROM work WHERE n = $1`, n)
			say("count", row, err)
		}
	}
	switch chance.IntN(5) {
	case 0:
		say("rollback", nil, tx.Rollback())
	case 1:
		cancel()
		say("cancelled", tx.Commit() != nil, nil)
		return
	default:
		say("commit", nil, tx.Commit())
	}
	say("again", nil, tx.Commit())
}
