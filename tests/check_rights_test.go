package tests_test

import (
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestCheckFindsAMissingPrivilege(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "postgres")
	migrate(t, db, inbox.Config{})
	role := roleOf(t, db)
	db.Do(t, `GRANT SELECT ON ALL TABLES IN SCHEMA public TO "`+role+`"`)
	found := check(t, documented(t, db, "role", role), inbox.Config{})
	require.Equal(t, []string{"error privileges", "error privileges"}, subjects(found))
	assert.Contains(t, found[0].Problem, "lacks INSERT, UPDATE, DELETE on millrace_consumers, millrace_claims, ")
	assert.Contains(t, found[1].Problem, "lacks INSERT on millrace_audit, millrace_audit_messages")

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
	pool = db.Open(t, testdb.Params("role", roleOf(t, db))).DB
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
			tables := dialectOf(t, db).Tables()
			newest := tables[len(tables)-1].Name
			for _, table := range tables[1 : len(tables)-1] {
				db.Do(t, `GRANT SELECT, INSERT, UPDATE, DELETE ON `+table.Name+` TO `+role)
			}
			db.Do(t, `GRANT SELECT ON `+tables[0].Name+` TO `+role) // the versions of the schema, which Migrate alone writes
			store := rig.NewStore(t, pool, inbox.Config{})
			lacks := func(rights string) {
				t.Helper()
				found := findings(t, store)
				require.NotEmpty(t, found)
				want := inbox.Finding{
					Severity: inbox.Error, Subject: "privileges", Problem: "the role " + role + " lacks " + rights + " on " + newest,
					Remedy: "GRANT " + rights + " ON " + newest + " TO " + role,
				}
				assert.Equal(t, want, found[0])
				router := rig.NewRouter(t)
				router.AddPlugin(store.Plugin())
				require.ErrorContains(t, router.Run(t.Context()), want.Problem, "it starts anyway")
				db.Do(t, found[0].Remedy)
				for _, f := range findings(t, store) {
					assert.Equal(t, inbox.Warning, f.Severity, f)
				}
			}
			lacks("SELECT, INSERT, UPDATE, DELETE")
			for _, right := range []string{"SELECT", "INSERT", "UPDATE", "DELETE", "INSERT, DELETE"} {
				db.Do(t, `REVOKE `+right+` ON `+newest+` FROM `+role)
				lacks(right)
			}
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
	db.Do(t, `REVOKE DELETE ON apart.millrace_steps, apart.millrace_leases FROM `+role)
	store := rig.NewStore(t, pool, inbox.Config{Schema: "apart"})
	found := findings(t, store)
	require.NotEmpty(t, found)
	assert.Equal(t, `GRANT DELETE ON "apart".millrace_leases, "apart".millrace_steps TO `+role, found[0].Remedy)
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
