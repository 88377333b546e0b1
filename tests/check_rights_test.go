package tests_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/dashboard"
	"github.com/millrace-go/millrace/health"
	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/payload"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestCheckFindsAMissingPrivilege(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "postgres")
	migrate(t, db, inbox.Config{})
	role := db.Role(t)
	db.Do(t, `GRANT SELECT ON ALL TABLES IN SCHEMA public TO "`+role+`"`)
	found := check(t, documented(t, db, "role", role), inbox.Config{})
	require.Equal(t, []string{"error privileges", "warning privileges", "warning privileges"}, subjects(found))
	assert.Contains(t, found[0].Problem, "lacks INSERT, UPDATE, DELETE on millrace_consumers, millrace_claims, ")
	assert.Contains(t, found[1].Problem, "lacks INSERT on millrace_audit, millrace_audit_messages")
	assert.Contains(t, found[2].Problem, "lacks INSERT, UPDATE, DELETE on millrace_dropped, ")

	db.Do(t, `GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO "`+role+`"`)
	found = check(t, documented(t, db, "role", role), inbox.Config{})
	require.Equal(t, []string{"warning statistics"}, subjects(found))
	assert.Contains(t, found[0].Problem, "millrace_messages")
	assert.NotContains(t, found[0].Problem, "outbox", "the relay's")
	assert.Empty(t, check(t, documented(t, db, "role", role, "plan_cache_mode", "force_custom_plan"), inbox.Config{}))
	db.Do(t, `ALTER TABLE millrace_messages OWNER TO "`+role+`"`)
	found = check(t, documented(t, db, "role", role), inbox.Config{})
	require.Len(t, found, 1)
	assert.NotContains(t, found[0].Problem, "millrace_messages")
	db.Do(t, `ALTER TABLE millrace_messages OWNER TO CURRENT_USER`)
}

// rightless is a pool of a role without rights, and how GRANT names the role.
func rightless(t *testing.T, db *testdb.DB) (role string, pool *sqlx.DB) {
	t.Helper()
	if db.Dialect == "mysql" {
		l := login(t, testdb.On(t, "mysql"), db)
		db.Do(t, `REVOKE ALL ON `+l.database+`.* FROM `+l.user)
		return `'` + l.user + `'@'%'`, l.pool
	}
	pool = db.Open(t, testdb.Params("role", db.Role(t))).DB
	require.NoError(t, pool.GetContext(t.Context(), &role, `SELECT quote_ident(current_user)`))
	return role, pool
}

// A migration makes a table on which the role of the service has no right: the next start says so, not the first statement.
func TestCheckNamesTheRightsThatAreMissing(t *testing.T) {
	t.Parallel()
	for _, server := range []string{"postgres", "mysql"} {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			db := testdb.On(t, server)
			migrate(t, db, inbox.Config{})
			role, pool := rightless(t, db)
			const vital, newest = "millrace_history", "millrace_processes"
			for _, table := range dialectOf(t, db).Tables()[1:] {
				if table.Name != vital && table.Name != newest {
					db.Do(t, `GRANT SELECT, INSERT, UPDATE, DELETE ON `+table.Name+` TO `+role)
				}
			}
			db.Do(t, `GRANT SELECT ON millrace_schema TO `+role) // which Migrate alone writes
			store := rig.NewStore(t, pool, inbox.Config{})
			privileges := func() (all []inbox.Finding) {
				for _, f := range findings(t, store) {
					if f.Subject == "privileges" {
						all = append(all, f)
					} else {
						assert.Equal(t, inbox.Warning, f.Severity, f)
					}
				}
				return all
			}
			lacks := func(rights string) {
				t.Helper()
				finding := func(s inbox.Severity, table, more string) inbox.Finding {
					return inbox.Finding{
						Severity: s, Subject: "privileges", Problem: "the role " + role + " lacks " + rights + " on " + table + more,
						Remedy: "GRANT " + rights + " ON " + table + " TO " + role,
					}
				}
				found := privileges()
				require.Equal(t, []inbox.Finding{
					finding(inbox.Error, vital, ""), finding(inbox.Warning, newest, ", which an inbox alone can do without"),
				}, found)
				router := rig.NewRouter(t)
				router.AddPlugin(store.Plugin())
				require.ErrorContains(t, router.Run(t.Context()), found[0].Problem, "it starts anyway")
				db.Do(t, found[0].Remedy)
				assert.Equal(t, found[1:], privileges())
				db.Do(t, found[1].Remedy)
				assert.Empty(t, privileges())
			}
			lacks("SELECT, INSERT, UPDATE, DELETE")
			for _, right := range []string{"SELECT", "INSERT", "UPDATE", "DELETE", "INSERT, DELETE"} {
				db.Do(t, `REVOKE `+right+` ON `+vital+` FROM `+role)
				db.Do(t, `REVOKE `+right+` ON `+newest+` FROM `+role)
				lacks(right)
			}
		})
	}
}

// ofInboxAlone is a pool of a role with the rights that an inbox alone uses, and how GRANT names the role.
func ofInboxAlone(t *testing.T, db *testdb.DB) (role string, pool *sqlx.DB) {
	t.Helper()
	role, pool = rightless(t, db)
	for _, table := range []string{"consumers", "claims", "messages", "results", "outcomes", "journal", "history"} {
		db.Do(t, `GRANT SELECT, INSERT, UPDATE, DELETE ON millrace_`+table+` TO `+role)
	}
	db.Do(t, `GRANT SELECT ON millrace_schema TO `+role)
	return role, pool
}

// A role may have rights only on what an inbox alone uses: the service starts and works, and the other tables are named.
func TestAnInboxAloneWorksWithTheRightsThatItUses(t *testing.T) {
	t.Parallel()
	for _, server := range []string{"postgres", "mysql"} {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, testdb.On(t, server))
			role, pool := ofInboxAlone(t, b.db)
			b.db.Do(t, `GRANT SELECT, INSERT ON effects TO `+role)

			elsewhere, err := payload.NewFileBlobs(t.TempDir())
			require.NoError(t, err)
			for _, blobs := range []inbox.Config{{BlobsAbove: 1}, {Blobs: elsewhere}} {
				keepsBlobs := findings(t, b.newStore(pool, blobs))
				require.Contains(t, keepsBlobs[0].Remedy, " ON millrace_blobs TO ")
				assert.Equal(t, inbox.Error, keepsBlobs[0].Severity)
			}
			b.store = b.newStore(pool, inbox.Config{PurgeInterval: time.Hour})
			for _, f := range findings(t, b.store) {
				assert.Equal(t, inbox.Warning, f.Severity, f)
			}
			var fails atomic.Bool
			fails.Store(true)
			s := b.newService(func(msg *message.Message) ([]*message.Message, error) {
				if err := inbox.SetResult(msg.Context(), "done"); err != nil {
					return nil, err
				}
				if _, err := effect(msg); err != nil {
					return nil, err
				}
				if fails.Swap(false) {
					return nil, errors.Join(errBoom, end(msg, (*sqlx.Tx).Commit))
				}
				return message.Messages{newMessage("produced")}, nil
			}, millrace.Inbox{Store: b.store, Options: inbox.Options{RecordFailures: true}}.Middleware)
			msg := newMessage("x")
			assert.False(t, s.deliver(again(msg)), "it failed, after a commit of its own")
			assert.True(t, s.deliver(again(msg)))
			assert.True(t, s.deliver(again(msg)), "a duplicate")
			assert.Equal(t, 2, b.effectsOf(msg.UUID))
			rig.Eventually(b, "the outcome is settled", func() bool { return b.count(`SELECT COUNT(*) FROM millrace_outcomes`) == 0 })

			b.age(8 * day)
			n, err := b.store.Purge(t.Context())
			assert.Equal(t, 1, n)
			require.Error(t, err, "of the other tables")
			assert.True(t, s.deliver(newMessage("y")), "what the janitor may not do holds nobody back")
			ready, err := health.NewHandler(health.Config{Store: b.store, Timeout: rig.Patience})
			require.NoError(t, err)
			answer := httptest.NewRecorder()
			ready.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/", nil))
			assert.Equal(t, http.StatusOK, answer.Code, answer.Body)

			pages, err := dashboard.New(b.store, dashboard.Config{Operator: func(*http.Request) string { return "ada" }})
			require.NoError(t, err)
			answer = httptest.NewRecorder()
			pages.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/", nil))
			assert.Equal(t, http.StatusOK, answer.Code, answer.Body)
			answer = httptest.NewRecorder()
			pages.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/message?key="+msg.UUID, nil))
			assert.NotContains(t, answer.Body.String(), "The database is out")
			assert.Contains(t, answer.Body.String(), "the role lacks a right")
		})
	}
}

// A queue notes new keys with the steps of its messages: without the right to, it would deliver nothing once the key changes.
func TestAQueueNeedsRightsOnSteps(t *testing.T) {
	t.Parallel()
	for _, server := range []string{"postgres", "mysql"} {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, testdb.On(t, server))
			role, pool := ofInboxAlone(t, b.db)
			store := b.newStore(pool, inbox.Config{})
			for _, f := range findings(t, store) {
				assert.Equal(t, inbox.Warning, f.Severity, f)
			}
			last := rig.Queue(t, store, inbox.QueueConfig{Consumer: "billing"})
			msg := newMessage("x")
			msg.Metadata.Set("order", "7")
			require.NoError(t, last.Put(t.Context(), "orders", msg))
			found := findings(t, store)[0]
			assert.Equal(t, "GRANT SELECT, INSERT, UPDATE, DELETE ON millrace_steps TO "+role, found.Remedy)
			require.Equal(t, inbox.Error, found.Severity)
			router := rig.NewRouter(t)
			router.AddPlugin(store.Plugin())
			require.ErrorContains(t, router.Run(t.Context()), found.Problem, "it starts anyway")
			next := rig.Queue(t, b.newStore(pool, inbox.Config{}), inbox.QueueConfig{
				Consumer: "billing", Epoch: 1, Key: inbox.ByMetadata("order"),
				OrderKey: func(*message.Message) (string, error) { return "", nil }, // else the failure is logged alone
			})
			_, _, err := next.Take(t.Context(), 1, time.Second)
			require.ErrorContains(t, err, "millrace_steps", "it has no need of the right")
			b.db.Do(t, found.Remedy)
			assert.Len(t, rig.Take(t, next, 1), 1)
		})
	}
}

// The rights may be of a schema that is not in the search path.
func TestCheckNamesTheSchemaOfMissingRights(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "postgres", testdb.Empty())
	db.Do(t, `CREATE SCHEMA apart`)
	migrate(t, db, inbox.Config{Schema: "apart"})
	role, pool := rightless(t, db)
	db.Do(t, `GRANT USAGE ON SCHEMA apart TO `+role)
	db.Do(t, `GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA apart TO `+role)
	db.Do(t, `REVOKE DELETE ON apart.millrace_history, apart.millrace_claims FROM `+role)
	store := rig.NewStore(t, pool, inbox.Config{Schema: "apart"})
	found := findings(t, store)
	require.NotEmpty(t, found)
	assert.Equal(t, `GRANT DELETE ON "apart".millrace_claims, "apart".millrace_history TO `+role, found[0].Remedy)
}

// MySQL denies a role without a right on a table that is missing just as well: before the migration, that is what helps.
func TestATableThatIsNotMadeYetIsNoMissingRight(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "mysql", testdb.Empty())
	migrate(t, db, inbox.Config{})
	role, pool := rightless(t, db)
	tables := dialectOf(t, db).Tables()
	newest := tables[len(tables)-1].Name
	for _, table := range tables[:len(tables)-1] {
		db.Do(t, `GRANT SELECT, INSERT, UPDATE, DELETE ON `+table.Name+` TO `+role)
	}
	db.Do(t, `DROP TABLE `+newest)
	db.Do(t, `DELETE FROM millrace_schema WHERE version = ?`, dialectOf(t, db).Version())
	found := findings(t, rig.NewStore(t, pool, inbox.Config{}))
	require.NotEmpty(t, found)
	assert.Equal(t, newest, found[0].Subject)
	assert.Equal(t, "the table is missing", found[0].Problem)
	assert.Contains(t, found[0].Remedy, "Migrate")
}
