package tests_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// archiveBodies: an archive that writes in the transaction that deletes the claims, and loses that transaction.
var archiveBodies = []testdb.Body{
	{Name: "an archive that goes on after a deadlock", Why: "no claim is deleted that is not in the archive", Run: func(t *testing.T, db *testdb.DB) {
		if db.Dialect != "mysql" { // PostgreSQL refuses the statements after it, and SQLite has no deadlocks
			return
		}
		b := newBed(t, db)
		for range 3 {
			must(t, b.inbox(effect), newMessage("x"))
		}
		b.age(8 * day)
		b.exec(`CREATE TABLE archive (id VARCHAR(300))`)
		loses := true
		store := b.newStore(db.DB, inbox.Config{Archive: func(ctx context.Context, claims []inbox.ExpiredClaim) error {
			for i, c := range claims {
				if i == 1 && loses {
					loses = false
					tx, err := inbox.Tx(ctx)
					require.NoError(t, err)
					faults.LoseDeadlock(t, db, tx)
				}
				if err := rig.Exec(ctx, `INSERT INTO archive (id) VALUES (?)`, c.MessageID); err != nil {
					return err
				}
			}
			return nil
		}})
		n, err := store.Purge(t.Context())
		require.ErrorContains(t, err, "archive: the database ended the transaction")
		assert.Zero(t, n)
		assert.Equal(t, 3, b.count(`SELECT COUNT(*) FROM millrace_claims`))
		assert.Zero(t, b.count(`SELECT purge_line FROM millrace_consumers`))
		b.exec(`DELETE FROM archive`) // the rows that were written after the deadlock
		assert.Equal(t, 3, rig.Purge(t, store))
		assert.Equal(t, 3, b.count(`SELECT COUNT(*) FROM archive`))
		assert.Zero(t, b.count(`SELECT COUNT(*) FROM millrace_claims`))
	}},
}
