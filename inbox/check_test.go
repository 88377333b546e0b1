package inbox_test

import (
	"path/filepath"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/millrace-go/millrace/inbox"
)

// checked opens a pool on a DSN of SQLite.
func checked(t *testing.T, dsn string, pool int) *inbox.Store {
	t.Helper()
	db, err := sqlx.Open("sqlite", dsn)
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(pool)
	store, err := inbox.NewStore(db, inbox.Config{})
	require.NoError(t, err)
	return store
}

// migrated makes the tables and leaves no connection behind, which would hold the mode.
func migrated(t *testing.T, dsn string) {
	t.Helper()
	db, err := sqlx.Open("sqlite", dsn)
	require.NoError(t, err)
	store, err := inbox.NewStore(db, inbox.Config{})
	require.NoError(t, err)
	require.NoError(t, store.Migrate(t.Context()))
	require.NoError(t, db.Close())
}

func findings(t *testing.T, store *inbox.Store) []inbox.Finding {
	t.Helper()
	found, err := store.Check(t.Context())
	require.NoError(t, err)
	return found
}

// subjects are the findings without their texts.
func subjects(found []inbox.Finding) []string {
	names := make([]string, 0, len(found))
	for _, f := range found {
		names = append(names, f.Severity.String()+" "+f.Subject)
	}
	return names
}

func TestCheckOfSQLite(t *testing.T) {
	const (
		wal  = "_txlock=immediate&_pragma=journal_mode(WAL)&_pragma=busy_timeout"
		good = wal + "(10000)&_pragma=synchronous(FULL)"
	)
	for name, c := range map[string]struct {
		params string
		want   []string
	}{
		"set up well":     {good, []string{}},
		"synchronous=3":   {good + "&_pragma=synchronous(EXTRA)", []string{}},
		"no WAL":          {"_pragma=busy_timeout(10000)&_pragma=journal_mode(DELETE)", []string{"error journal_mode"}},
		"synchronous=OFF": {good + "&_pragma=synchronous(OFF)", []string{"warning synchronous"}},
		"NORMAL":          {good + "&_pragma=synchronous(NORMAL)", []string{"warning synchronous"}},
		"no wait":         {wal + "(0)", []string{"warning busy_timeout"}},
		"query only":      {good + "&_pragma=query_only(1)", []string{"error query_only"}},
		"read-only file":  {"mode=ro&" + good, []string{"error server"}},
		"errors first": {"_pragma=busy_timeout(0)&_pragma=synchronous(OFF)&_pragma=journal_mode(DELETE)",
			[]string{"error journal_mode", "warning synchronous", "warning busy_timeout"}},
	} {
		t.Run(name, func(t *testing.T) {
			file := "file:" + filepath.Join(t.TempDir(), "inbox.db") + "?"
			migrated(t, file+wal+"(1000)")
			found := findings(t, checked(t, file+c.params, 4))
			assert.Equal(t, c.want, subjects(found), "%v", found)
			for _, f := range found {
				assert.NotEmpty(t, f.Problem)
				assert.Contains(t, f.Remedy, "connection string")
			}
		})
	}
}

func TestCheckOfSQLiteInMemory(t *testing.T) {
	for _, dsn := range []string{":memory:", "", "file::memory:?cache=shared"} {
		for pool, want := range map[int]string{0: "error file", 2: "error file", 1: "warning file"} {
			store := checked(t, dsn, pool)
			require.NoError(t, store.Migrate(t.Context()))
			found := findings(t, store)
			require.NotEmpty(t, found)
			assert.Equal(t, want, subjects(found)[0], "%q with a pool of %d", dsn, pool)
			assert.Contains(t, found[0].Remedy, "name a file")
		}
	}
}

func TestCheckOfASettingThatOnlyOneConnectionWouldHave(t *testing.T) {
	store := checked(t, "file:"+filepath.Join(t.TempDir(), "inbox.db")+"?_pragma=journal_mode(DELETE)", 4)
	require.NoError(t, store.Migrate(t.Context()))
	found := findings(t, store)
	require.NotEmpty(t, found)
	assert.Contains(t, found[0].Remedy, "every connection of the pool")
	assert.Contains(t, found[0].Remedy, "?_pragma=journal_mode(WAL)")
	assert.Contains(t, found[0].String(), "journal_mode: ")
}

func TestCheckOfAClosedPool(t *testing.T) {
	db, err := sqlx.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "inbox.db"))
	require.NoError(t, err)
	store, err := inbox.NewStore(db, inbox.Config{})
	require.NoError(t, err)
	require.NoError(t, db.Close())
	_, err = store.Check(t.Context())
	require.ErrorIs(t, err, inbox.ErrUnavailable)
	require.ErrorContains(t, err, "is the pool open")
}
