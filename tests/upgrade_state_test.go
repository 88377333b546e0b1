package tests_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// stateColumns are those of migration 8. Without them a row is as the releases before wrote it: a text says that it
// is refused, and the audit table that it is allowed.
var stateColumns = []string{"reason_code", "error_code", "allowed"}

// withoutReady drops what the migrations from 9 on made; on MariaDB they do nothing the second time.
func withoutReady(t *testing.T, db *testdb.DB) {
	t.Helper()
	db.DropViews(t)
	indexes := map[string][]string{"postgres": {"free", "lined", "line", "stuck"}, "sqlite": {"free", "lined", "line", "stuck", "ages"}}
	for _, name := range indexes[db.Dialect] {
		db.Do(t, `DROP INDEX ix_millrace_messages_`+name)
	}
	if db.Dialect != "mysql" {
		db.Do(t, `ALTER TABLE millrace_outbox_relays DROP COLUMN broker_error`)
		db.Do(t, `ALTER TABLE millrace_outbox_relays DROP COLUMN broker_out_since`)
		for _, c := range []string{"run_of", "process", "took_us", "trace"} {
			db.Do(t, `ALTER TABLE millrace_history DROP COLUMN `+c)
		}
		db.Do(t, `DROP TABLE millrace_audit_messages`)
		db.Do(t, `DROP TABLE millrace_processes`)
		db.Do(t, `DROP INDEX ix_millrace_audit_bulk`)
		db.Do(t, `ALTER TABLE millrace_audit DROP COLUMN bulk`)
		db.Do(t, `ALTER TABLE millrace_audit DROP COLUMN messages`)
	}
}

// refusals are the messages of a consumer that refuses replayed ones.
type refusals struct {
	*bed
	*service
}

func newRefusals(t *testing.T, db *testdb.DB) *refusals {
	b := newBed(t, db)
	return &refusals{b, b.oneHandler("orders", effect, millrace.Inbox{Store: b.store, Options: inbox.Options{OnReplay: inbox.ReplayRefuse, TwinWait: rig.Patience}}.Middleware)}
}

// refuse delivers a replayed message, and returns it with its row.
func (r *refusals) refuse(t *testing.T) (*message.Message, int64) {
	t.Helper()
	msg := replay(newMessage("x"), "of May")
	assert.True(t, r.deliver(again(msg)))
	for _, m := range rig.Parked(t, r.store) {
		if m.UUID == msg.UUID {
			return msg, m.ID
		}
	}
	require.Fail(t, "it is not parked")
	return nil, 0
}

func (r *refusals) retry(t *testing.T, id int64) {
	t.Helper()
	require.NoError(t, admin.New(r.store).Retry(t.Context(), id, operator, r.published))
}

// is reports whether the row of msg is as condition says.
func (r *refusals) is(msg *message.Message, condition string, args ...any) bool {
	return r.count(`SELECT COUNT(*) FROM millrace_messages WHERE uuid = ? AND `+condition, append([]any{[]byte(msg.UUID)}, args...)...) == 1
}

func TestMigrationReadsStateFromTextsOnce(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		r := newRefusals(t, db)
		refused, _ := r.refuse(t)
		wanted, id := r.refuse(t)
		r.retry(t, id)
		before, id := r.refuse(t) // what an operator wanted before it was stored is over
		r.retry(t, id)
		failed, _ := r.refuse(t)
		r.exec(`UPDATE millrace_messages SET status = ?, reason = ?, received_at = received_at + 3600000000 WHERE uuid = ?`,
			admin.Parked, []byte(`replayed by "of May", and parked again`), []byte(before.UUID))
		r.exec(`UPDATE millrace_messages SET reason = ? WHERE uuid = ?`, []byte("failed 10 times"), []byte(failed.UUID))
		r.exec(`DELETE FROM millrace_schema WHERE version >= 8`)
		withoutReady(t, r.db)
		for _, c := range stateColumns {
			r.exec(`ALTER TABLE millrace_messages DROP COLUMN ` + c)
		}

		require.NoError(t, r.store.Migrate(t.Context()))
		r.exec(`DELETE FROM millrace_audit`)
		assert.True(t, r.is(refused, `reason_code = 1 AND allowed = 0`))
		assert.True(t, r.is(wanted, `reason_code = 0 AND allowed = 1`))
		assert.True(t, r.is(before, `reason_code = 1 AND allowed = 0`))
		assert.True(t, r.is(failed, `reason_code = 0 AND allowed = 0`))
		assert.Equal(t, 4, r.count(`SELECT COUNT(*) FROM millrace_messages WHERE error_code = 0`))
		for msg, runs := range map[*message.Message]int{refused: 0, wanted: 1, before: 0} {
			assert.True(t, r.deliver(again(msg)))
			assert.Equal(t, runs, r.effectsOf(msg.UUID))
		}
	})
}

// While both releases run, the one before writes texts and audit rows alone. Of the two mistakes that this one could
// make it makes the one that runs nothing: a message waits for an operator once more.
func TestWhatTheReleaseBeforeRefusesBesideThisOne(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		r := newRefusals(t, db)
		tried, id := r.refuse(t)
		r.exec(`UPDATE millrace_messages SET reason_code = 0, attempts = 1`) // refused by the release before, at its second attempt
		assert.True(t, r.deliver(again(tried)))
		assert.True(t, r.is(tried, `status = ? AND reason_code = 1 AND allowed = 0`, admin.Parked), "it is refused again, now in a column")
		assert.True(t, r.deliver(again(tried)))
		assert.Len(t, rig.Story(t, r.store, tried.UUID).Audit, 1, "and is not brought back twice")

		r.exec(`UPDATE millrace_messages SET status = ?`, admin.FailedRetryable) // an operator had it tried again there
		r.exec(`UPDATE millrace_audit SET action = ?`, []byte("retry"))
		assert.True(t, r.deliver(again(tried)))
		assert.Equal(t, 0, r.effectsOf(tried.UUID))
		assert.True(t, r.is(tried, `status = ?`, admin.Parked))
		r.retry(t, id)
		assert.True(t, r.deliver(again(tried)))
		assert.Equal(t, 1, r.effectsOf(tried.UUID))
	})
}
