package inbox_test

import (
	"maps"
	"path/filepath"
	"testing"
	"time"

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

func judge(t *testing.T, config inbox.Config, pool int, pooled bool, base, change map[string]string) []inbox.Finding {
	t.Helper()
	db, err := sqlx.Open("sqlite", ":memory:") // never asked
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	store, err := inbox.NewStore(db, config)
	require.NoError(t, err)
	found := maps.Clone(base)
	for name, value := range change {
		if found[name] = value; value == "-" {
			delete(found, name)
		}
	}
	return inbox.CheckSettings(store, pool, pooled, 5*time.Second, found)
}

type set = map[string]string

var postgres15 = set{
	"server_version_num": "150020", "in_recovery": "false", "default_transaction_read_only": "off",
	"synchronous_commit": "on", "fsync": "on", "full_page_writes": "on", "max_connections": "100",
	"idle_in_transaction_session_timeout": "30000", "idle_in_transaction_session_timeout.source": "client",
	"lock_timeout": "10000", "default_transaction_isolation": "read committed", "tcp_keepalives_idle": "7200",
	"tcp_user_timeout": "0",
}

func TestCheckJudgesSettingsOfPostgreSQL(t *testing.T) {
	for _, c := range []struct {
		change set
		pool   int
		pooled bool
		want   []string
		remedy string
	}{
		{pool: 10, want: []string{}},
		{set{"server_version_num": "120011"}, 10, false, []string{"error server"}, "13"},
		{set{"server_version_num": "130000"}, 10, false, []string{}, ""},
		{set{"in_recovery": "true"}, 10, false, []string{"error server"}, "primary"},
		{set{"default_transaction_read_only": "on"}, 10, false, []string{"error default_transaction_read_only"}, "connection string"},
		{set{"synchronous_commit": "off"}, 10, false, []string{"warning synchronous_commit"}, "on"},
		{set{"synchronous_commit": "remote_apply"}, 10, false, []string{}, ""},
		{set{"fsync": "off"}, 10, false, []string{"warning fsync"}, "on"},
		{set{"full_page_writes": "off"}, 10, false, []string{"warning full_page_writes"}, "on"},
		{set{"lock_timeout": "0"}, 10, false, []string{"warning lock_timeout"}, "?lock_timeout=10000"},
		{set{"idle_in_transaction_session_timeout": "0"}, 10, false, []string{"warning idle_in_transaction_session_timeout"},
			"tcp_keepalives_idle=60"},
		{set{"idle_in_transaction_session_timeout": "0", "tcp_keepalives_idle": "30"}, 10, false,
			[]string{"warning idle_in_transaction_session_timeout"}, "?idle_in_transaction_session_timeout=30000"},
		{set{}, 10, true, []string{"warning idle_in_transaction_session_timeout"}, "ALTER ROLE"},
		{set{"idle_in_transaction_session_timeout.source": "user"}, 10, true, []string{}, ""},
		{set{"default_transaction_isolation": "serializable"}, 10, false, []string{"warning default_transaction_isolation"},
			"=read%20committed"},
		{set{}, 0, false, []string{"warning pool"}, "SetMaxOpenConns"},
		{set{}, 1, false, []string{"warning pool"}, "SetMaxOpenConns(2)"},
		{set{}, 101, false, []string{"warning pool"}, "smaller"},
	} {
		found := judge(t, inbox.Config{Dialect: "postgres"}, c.pool, c.pooled, postgres15, c.change)
		if assert.Equal(t, c.want, subjects(found), "%v", c) && len(found) > 0 {
			assert.Contains(t, found[0].Remedy, c.remedy)
		}
	}
}

func TestCheckComparesMaxInFlightWithThePool(t *testing.T) {
	for inFlight, want := range map[int][]string{
		0: {}, 9: {}, 10: {"warning MaxInFlight"}, 11: {"warning MaxInFlight"},
	} {
		found := judge(t, inbox.Config{Dialect: "postgres", MaxInFlight: inFlight}, 10, false, postgres15, nil)
		assert.Equal(t, want, subjects(found), "MaxInFlight %d", inFlight)
	}
}

var mysql8 = set{
	"version": "8.0.36", "read_only": "OFF", "innodb_read_only": "OFF", "transaction_read_only": "OFF",
	"autocommit": "ON", "transaction_isolation": "READ-COMMITTED", "innodb_flush_log_at_trx_commit": "1",
	"log_bin": "ON", "sync_binlog": "1", "binlog_format": "ROW", "sql_mode": "STRICT_TRANS_TABLES,NO_ZERO_DATE",
	"max_allowed_packet": "16777216", "max_connections": "151", "wait_timeout": "60", "innodb_lock_wait_timeout": "10",
}

func TestCheckJudgesSettingsOfMySQL(t *testing.T) {
	mariaDB := func(change set) set {
		s := set{
			"version": "10.11.6-MariaDB", "transaction_isolation": "-", "tx_isolation": "READ-COMMITTED",
			"wait_timeout": "28800", "idle_write_transaction_timeout": "30",
		}
		maps.Copy(s, change)
		return s
	}
	for _, c := range []struct {
		change set
		want   []string
		remedy string
	}{
		{set{}, []string{}, ""},
		{mariaDB(nil), []string{}, ""},
		{set{"version": "5.7.44-log"}, []string{"error server"}, "8.0"},
		{set{"version": "9.1.0"}, []string{}, ""},
		{mariaDB(set{"version": "10.5.23-MariaDB-1:10.5"}), []string{"error server"}, "10.6"},
		{mariaDB(set{"version": "10.6.0-MariaDB"}), []string{}, ""},
		{mariaDB(set{"version": "11.4.2-MariaDB"}), []string{}, ""},
		{set{"read_only": "ON"}, []string{"error read_only"}, "primary"},
		{set{"innodb_read_only": "ON"}, []string{"error innodb_read_only"}, "primary"},
		{set{"transaction_read_only": "ON"}, []string{"error transaction_read_only"}, "connection string"},
		{set{"autocommit": "OFF"}, []string{"error autocommit"}, "autocommit=0"},
		{set{"binlog_format": "STATEMENT"}, []string{"error binlog_format"}, "ROW"},
		{set{"binlog_format": "STATEMENT", "log_bin": "OFF"}, []string{}, ""},
		{set{"transaction_isolation": "REPEATABLE-READ"}, []string{"warning transaction_isolation"},
			"transaction_isolation=%27READ-COMMITTED%27"},
		{mariaDB(set{"tx_isolation": "REPEATABLE-READ"}), []string{"warning tx_isolation"}, "tx_isolation=%27READ-COMMITTED%27"},
		{set{"innodb_flush_log_at_trx_commit": "2"}, []string{"warning innodb_flush_log_at_trx_commit"}, "1"},
		{set{"sync_binlog": "0"}, []string{"warning sync_binlog"}, "1"},
		{set{"sync_binlog": "0", "log_bin": "OFF"}, []string{}, ""},
		{set{"sql_mode": ""}, []string{"warning sql_mode"}, "STRICT_TRANS_TABLES"},
		{set{"sql_mode": "STRICT_ALL_TABLES"}, []string{}, ""},
		{set{"max_allowed_packet": "1048576"}, []string{"warning max_allowed_packet"}, "16M"},
		{set{"wait_timeout": "28800"}, []string{"warning wait_timeout"}, "?wait_timeout=60"},
		{mariaDB(set{"idle_write_transaction_timeout": "0"}), []string{"warning idle_write_transaction_timeout"},
			"?idle_write_transaction_timeout=30"},
		{mariaDB(set{"idle_write_transaction_timeout": "0", "idle_transaction_timeout": "60"}), []string{}, ""},
		{set{"innodb_lock_wait_timeout": "50"}, []string{"warning innodb_lock_wait_timeout"}, "?innodb_lock_wait_timeout=10"},
	} {
		found := judge(t, inbox.Config{Dialect: "mysql"}, 10, false, mysql8, c.change)
		if assert.Equal(t, c.want, subjects(found), "%v", c) && len(found) > 0 {
			assert.Contains(t, found[0].Remedy, c.remedy)
		}
	}
}
