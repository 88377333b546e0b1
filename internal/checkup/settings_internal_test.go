package checkup

import (
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/internal/dialect"
)

// judge returns the findings in settings that differ from others by a change: "-" leaves one out.
func judge(c Checkup, dialectName string, base, change map[string]string) []Finding {
	c.Dialect, c.TwinWait = dialect.For(dialectName, dialect.Names{Prefix: dialect.DefaultPrefix}), 5*time.Second
	c.settings = maps.Clone(base)
	for name, value := range change {
		if c.settings[name] = value; value == "-" {
			delete(c.settings, name)
		}
	}
	c.judgeSettings()
	return c.findings
}

// subjects are the findings without their texts.
func subjects(found []Finding) []string {
	names := make([]string, 0, len(found))
	for _, f := range found {
		severity := map[bool]string{true: "error ", false: "warning "}[f.Fatal]
		names = append(names, severity+f.Subject)
	}
	return names
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
		found := judge(Checkup{pool: c.pool, pooled: c.pooled}, "postgres", postgres15, c.change)
		if assert.Equal(t, c.want, subjects(found), "%v", c) && len(found) > 0 {
			assert.Contains(t, found[0].Remedy, c.remedy)
		}
	}
}

func TestCheckComparesMaxInFlightWithThePool(t *testing.T) {
	for inFlight, want := range map[int][]string{
		0: {}, 9: {}, 10: {"warning MaxInFlight"}, 11: {"warning MaxInFlight"},
	} {
		found := judge(Checkup{pool: 10, MaxInFlight: inFlight}, "postgres", postgres15, nil)
		assert.Equal(t, want, subjects(found), "MaxInFlight %d", inFlight)
	}
}

var mysql8 = set{
	"version": "8.0.36", "read_only": "OFF", "innodb_read_only": "OFF", "transaction_read_only": "OFF",
	"autocommit": "ON", "transaction_isolation": "READ-COMMITTED", "innodb_flush_log_at_trx_commit": "1",
	"log_bin": "ON", "sync_binlog": "1", "binlog_format": "ROW", "sql_mode": "STRICT_TRANS_TABLES,NO_ZERO_DATE",
	"max_allowed_packet": "16777216", "max_connections": "151", "wait_timeout": "60", "innodb_lock_wait_timeout": "10",
	"sql_select_limit": "18446744073709551615",
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
		{set{"completion_type": "NO_CHAIN"}, []string{}, ""},
		{set{"completion_type": "RELEASE"}, []string{"error completion_type"}, "NO_CHAIN"},
		{set{"sql_safe_updates": "ON"}, []string{"error sql_safe_updates"}, "sql_safe_updates=1"},
		{set{"sql_select_limit": "9999", "autocommit": "OFF"}, []string{"error sql_select_limit"}, "10000"},
		{set{"sql_select_limit": "10000"}, []string{}, ""},
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
		{mariaDB(set{"sql_mode": "STRICT_ALL_TABLES,SIMULTANEOUS_ASSIGNMENT"}), []string{"error sql_mode"}, "remove"},
		{mariaDB(set{"sql_mode": "STRICT_ALL_TABLES,EMPTY_STRING_IS_NULL"}), []string{"error sql_mode"}, "remove"},
		{set{"max_allowed_packet": "1048576"}, []string{"warning max_allowed_packet"}, "16M"},
		{set{"wait_timeout": "28800"}, []string{"warning wait_timeout"}, "?wait_timeout=60"},
		{mariaDB(set{"idle_write_transaction_timeout": "0"}), []string{"warning idle_write_transaction_timeout"},
			"?idle_write_transaction_timeout=30"},
		{mariaDB(set{"idle_write_transaction_timeout": "0", "idle_transaction_timeout": "60"}), []string{}, ""},
		{set{"innodb_lock_wait_timeout": "50"}, []string{"warning innodb_lock_wait_timeout"}, "?innodb_lock_wait_timeout=10"},
		{mariaDB(set{"wsrep_provider": "none", "wsrep_on": "OFF", "wsrep_sync_wait": "0"}), []string{}, ""},
		{mariaDB(set{"wsrep_provider": "/usr/lib/galera/libgalera_smm.so", "wsrep_on": "ON", "wsrep_sync_wait": "7"}), []string{}, ""},
		{mariaDB(set{"wsrep_provider": "/usr/lib/galera/libgalera_smm.so", "wsrep_on": "ON", "wsrep_sync_wait": "1"}),
			[]string{"warning wsrep_sync_wait"}, "wsrep_sync_wait=7"},
		{mariaDB(set{"wsrep_provider": "/usr/lib/galera/libgalera_smm.so", "wsrep_on": "OFF", "wsrep_sync_wait": "15"}),
			[]string{"error wsrep_on"}, "wsrep_on=0"},
	} {
		found := judge(Checkup{pool: 10}, "mysql", mysql8, c.change)
		if assert.Equal(t, c.want, subjects(found), "%v", c) && len(found) > 0 {
			assert.Contains(t, found[0].Remedy, c.remedy)
		}
	}
}
