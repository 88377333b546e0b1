// Package same makes the same calls through two drivers of database/sql and compares what they return.
package same

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"
)

// Fuzz makes the same calls through both pools, which are on one database, one after the other. They have the same results and
// errors, and leave the same rows. isAnswer reports whether an error is the server's.
func Fuzz(f *testing.F, pools [2]*sqlx.DB, isAnswer func(error) bool) {
	f.Helper()
	for seed := range uint64(200) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		var told [2]string
		for i, pool := range pools {
			for _, statement := range []string{`DROP TABLE IF EXISTS work`, `CREATE TABLE work (n INT PRIMARY KEY, word VARCHAR(20))`} {
				_, err := pool.ExecContext(t.Context(), statement)
				require.NoError(t, err)
			}
			told[i] = calls(t, pool, rand.New(rand.NewPCG(seed, 1)), isAnswer) //nolint:gosec // a test that can be repeated
		}
		require.Equal(t, told[0], told[1])
	})
}

// calls makes some calls and returns what they returned.
func calls(t testing.TB, pool *sqlx.DB, chance *rand.Rand, isAnswer func(error) bool) string {
	t.Helper()
	var told strings.Builder
	for range 3 {
		transact(t, pool, chance, &told, isAnswer)
	}
	var rows []string
	require.NoError(t, pool.SelectContext(t.Context(), &rows, `SELECT CONCAT(n, '=', word) FROM work ORDER BY n`))
	fmt.Fprintln(&told, "rows:", rows)
	return told.String()
}

func transact(t testing.TB, pool *sqlx.DB, chance *rand.Rand, told *strings.Builder, isAnswer func(error) bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	aborted := false // pgx may refuse an argument by itself then, or let the server refuse the statement
	say := func(what string, result any, err error) {
		if err != nil && aborted && what != "commit" {
			fmt.Fprintf(told, "%s: refused\n", what)
		} else {
			fmt.Fprintf(told, "%s: %v, %v\n", what, result, err)
		}
		aborted = aborted && err != nil || isAnswer(err)
	}
	options := []*sql.TxOptions{nil, {Isolation: sql.LevelSerializable}, {ReadOnly: true}, {Isolation: sql.LevelLinearizable}, nil, nil}
	outside, err := pool.PreparexContext(ctx, pool.Rebind(`INSERT INTO work VALUES (?, ?)`))
	require.NoError(t, err)
	defer outside.Close() //nolint:errcheck // the connection may be gone
	tx, err := pool.BeginTxx(ctx, options[chance.IntN(len(options))])
	say("begin", tx != nil, err)
	if err != nil {
		return
	}
	defer func() { _ = tx.Rollback() }()
	exec := func(query string, args ...any) {
		result, err := tx.ExecContext(ctx, tx.Rebind(query), args...)
		var n, id int64
		if err == nil {
			n, _ = result.RowsAffected()
			id, _ = result.LastInsertId()
		}
		say(query, [2]int64{n, id}, err)
	}
	for range chance.IntN(6) {
		n := chance.IntN(8)
		switch chance.IntN(17) {
		case 0, 1, 2:
			exec(`INSERT INTO work VALUES (?, ?)`, n, "word")
		case 3:
			exec(`INSERT INTO work SELECT ?, 'x' WHERE NOT EXISTS (SELECT 1 FROM work WHERE n = 3)`, n)
		case 4:
			exec(`UPDATE work SET word = ? WHERE n > ?`, fmt.Sprint(n), n)
		case 5:
			var rows []int
			err := tx.SelectContext(ctx, &rows, tx.Rebind(`DELETE FROM work WHERE n < ? RETURNING n`), n)
			say("delete", rows, err)
		case 6:
			exec(`SAVEPOINT here`)
		case 7:
			exec(`ROLLBACK TO SAVEPOINT here`)
		case 8:
			exec(`INSERT INTO nowhere VALUES (?)`, n)
		case 9:
			exec(`INSERT INTO work VALUES (?, ?)`, "no number", n)
		case 10:
			exec([]string{`COMMIT`, `ROLLBACK`, `this is no statement`, `INSERT INTO work VALUES (100, 'a'); INSERT INTO work VALUES (101, 'b')`}[chance.IntN(4)])
		case 11:
			stmt, err := tx.PreparexContext(ctx, tx.Rebind(`INSERT INTO work VALUES (?, ?)`))
			say("prepare", stmt != nil, err)
			if err == nil {
				_, err = stmt.ExecContext(ctx, n, "prepared")
				say("prepared", 0, err)
				require.NoError(t, stmt.Close()) //nolint:sqlclosecheck // there are more of them
			}
		case 12:
			exec(`SELECT 1 / CAST(? AS DECIMAL)`, 0)
		case 13:
			exec(`UPDATE work SET word = 'all'`)
		case 14:
			exec(`INSERT INTO work VALUES (?)`, n, "one too many")
		case 15:
			_, err := tx.StmtxContext(ctx, outside).ExecContext(ctx, n, "outside")
			say("prepared outside", 0, err)
		case 16:
			var row int
			err := tx.GetContext(ctx, &row, tx.Rebind(`SELECT COUNT(*) FROM work WHERE n = ?`), n)
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
