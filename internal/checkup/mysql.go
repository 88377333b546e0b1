package checkup

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

func (c *Checkup) mysql() {
	if c.mysqlCuts(); c.cut {
		return
	}
	v := c.settings
	mariaDB := strings.Contains(strings.ToLower(v["version"]), "mariadb")
	c.mysqlVersion(mariaDB)
	transaction := "transaction_read_only" // as transaction_isolation
	if _, known := v[transaction]; !known {
		transaction = "tx_read_only"
	}
	for _, setting := range []string{"read_only", "innodb_read_only", transaction} {
		if v[setting] == "ON" {
			c.fail(setting, "it is ON: the server, or this connection, takes no writes", "give the inbox the primary, "+
				"and remove read-only settings from the connection string")
		}
	}
	if v["autocommit"] == "OFF" {
		c.fail("autocommit", "it is OFF: writes outside a transaction are never committed, and reads see old rows",
			"remove autocommit=0 from the connection string, or set it to 1 on the server")
	}
	if after := v["completion_type"]; after != "" && after != "NO_CHAIN" {
		c.fail("completion_type", fmt.Sprintf("it is %s: COMMIT begins another transaction, in which later writes are lost, or closes the connection", after),
			"remove it from the connection string, or set it to NO_CHAIN on the server")
	}
	if v["sql_safe_updates"] == "ON" {
		c.fail("sql_safe_updates", "it is ON: the server refuses the migrations, and statements that purge",
			"remove sql_safe_updates=1 from the connection string, or set it to OFF on the server")
	}
	c.mysqlCharset()
	c.mysqlIsolation()
	c.mysqlDurability()
	c.mysqlTimeouts(mariaDB)
	c.galera()
	if mode := v["sql_mode"]; !strings.Contains(mode, "STRICT_TRANS_TABLES") && !strings.Contains(mode, "STRICT_ALL_TABLES") {
		c.warn("sql_mode", "it is not strict: values that do not fit are truncated without an error",
			"put sql_mode=%27TRADITIONAL%27 into the connection string, or STRICT_TRANS_TABLES into the server's sql_mode")
	}
	c.mariaDBModes()
	const packet = 4 << 20
	if size := v.number("max_allowed_packet"); size < packet {
		c.warn("max_allowed_packet", fmt.Sprintf("it is %d bytes: a larger message or outcome cannot be stored", size),
			"set it to 16M or more in the server's configuration")
	}
}

// mysqlCuts finds a limit that cuts lists which Millrace reads as a whole. It may have cut the settings too: each server has a version.
func (c *Checkup) mysqlCuts() {
	const longest = 10_000 // of these lists: names of blobs, messages that a gate releases
	rows, err := strconv.ParseUint(c.settings["sql_select_limit"], 10, 64)
	if c.cut = c.settings["version"] == "" || err == nil && rows < longest; c.cut {
		c.fail("sql_select_limit", "it cuts lists that Millrace reads whole: shards of the outbox can stay unsent, "+
			"and payloads in use be deleted", fmt.Sprintf("put sql_select_limit=%d or more into the connection string, or set it to its "+
			"default on the server", longest))
	}
}

// mysqlCharset finds a character set that lacks characters: texts of the outbox, which are not bytes, would change on
// their way. With gbk and the like, a server misreads arguments that a driver has written into a statement.
func (c *Checkup) mysqlCharset() {
	for _, setting := range []string{"character_set_client", "character_set_connection", "character_set_results"} {
		if set := c.settings[setting]; set != "" && set != "utf8mb4" {
			c.fail(setting, fmt.Sprintf("it is %s: the outbox cannot store or read each character", set),
				"remove charset and collation from the connection string, or set charset=utf8mb4")
			return
		}
	}
}

// mariaDBModes finds modes in which statements of ours mean something else. ORACLE has the first of them.
func (c *Checkup) mariaDBModes() {
	for _, m := range []struct{ mode, problem string }{
		{"SIMULTANEOUS_ASSIGNMENT", "the version of an aggregate is not recorded, and two can get one lease (ORACLE includes this mode)"},
		{"EMPTY_STRING_IS_NULL", "an empty text cannot be stored"},
	} {
		if strings.Contains(c.settings["sql_mode"], m.mode) {
			c.fail("sql_mode", fmt.Sprintf("it has %s: %s", m.mode, m.problem),
				"remove it from sql_mode, in the connection string or on the server")
		}
	}
}

var versionNumber = regexp.MustCompile(`^(\d+)\.(\d+)`)

func (c *Checkup) mysqlVersion(mariaDB bool) {
	version := c.settings["version"]
	m := versionNumber.FindStringSubmatch(version)
	if m == nil {
		return
	}
	major, _ := strconv.Atoi(m[1]) //nolint:errcheck // digits
	minor, _ := strconv.Atoi(m[2]) //nolint:errcheck // digits
	if least := 8_00; !mariaDB && major*100+minor < least {
		c.fail("server", "MySQL "+version+" is too old", "update it to 8.0 or newer")
	}
	if least := 10_06; mariaDB && major*100+minor < least {
		c.fail("server", version+" is too old", "update it to MariaDB 10.6 or newer")
	}
}

func (c *Checkup) mysqlIsolation() {
	v := c.settings
	setting := "transaction_isolation" // MySQL 8 and MariaDB 11.1 know it
	if _, known := v[setting]; !known {
		setting = "tx_isolation"
	}
	if level := v[setting]; level != "READ-COMMITTED" {
		c.warn(setting, fmt.Sprintf("it is %s, but claims need READ-COMMITTED: setting that costs a round trip per "+
			"transaction", level), fmt.Sprintf("put %s=%%27READ-COMMITTED%%27 into the connection string", setting))
	}
	if v["log_bin"] == "ON" && v["binlog_format"] == "STATEMENT" {
		c.fail("binlog_format", "it is STATEMENT, with which InnoDB refuses to write at READ COMMITTED",
			"set it to ROW or MIXED on the server")
	}
}

func (c *Checkup) mysqlDurability() {
	const risk = "when the server crashes, messages that were acked can lose their effects"
	v := c.settings
	if value := v["innodb_flush_log_at_trx_commit"]; value != "1" {
		c.warn("innodb_flush_log_at_trx_commit", fmt.Sprintf("it is %s: %s", value, risk), "set it to 1 on the server")
	}
	if v["innodb_doublewrite"] == "OFF" {
		c.warn("innodb_doublewrite", "it is OFF: a power failure destroys pages that are being written",
			"set it to ON on the server, unless its file system writes whole pages")
	}
	if value := v["sync_binlog"]; v["log_bin"] == "ON" && value != "1" {
		c.warn("sync_binlog", fmt.Sprintf("it is %s: %s on the replicas", value, risk), "set it to 1 on the server")
	}
}

// galera checks a connection to a node of a Galera cluster.
func (c *Checkup) galera() {
	const causal = 7 // BEGIN and reads, UPDATE and DELETE, INSERT
	v := c.settings
	if provider := v["wsrep_provider"]; provider == "" || provider == "none" {
		return
	}
	if v["wsrep_on"] == "OFF" {
		c.fail("wsrep_on", "it is OFF: the other nodes of the cluster do not get what this connection writes",
			"remove wsrep_on=0 from the connection string, or set it to ON on the server")
	}
	if wait := v.number("wsrep_sync_wait"); wait&causal != causal {
		c.warn("wsrep_sync_wait", fmt.Sprintf("it is %d: a node does not wait for what others have committed, so messages of one "+
			"order key that are stored through two nodes, one after the other, can be delivered in the wrong order", wait),
			"put wsrep_sync_wait=7 into the connection string of all processes")
	}
}

func (c *Checkup) mysqlTimeouts(mariaDB bool) {
	const (
		longestIdle = 300 // seconds
		farAbove    = 3   // times
	)
	v := c.settings
	idle := cmp.Or(v.number("idle_write_transaction_timeout"), v.number("idle_transaction_timeout"))
	switch wait := v.number("wait_timeout"); {
	case mariaDB && idle == 0 && wait > longestIdle:
		c.warn("idle_write_transaction_timeout", fmt.Sprintf("it is 0: a host that freezes or vanishes keeps its claims for "+
			"wait_timeout, which is %d seconds", wait),
			"put it into the connection string, for instance ?idle_write_transaction_timeout=30")
	case !mariaDB && wait > longestIdle:
		c.warn("wait_timeout", fmt.Sprintf("it is %d seconds: a host that freezes or vanishes keeps its claims that long", wait),
			"put it into the connection string, for instance ?wait_timeout=60, and set db.SetConnMaxIdleTime to half of it")
	}
	wait := time.Duration(v.number("innodb_lock_wait_timeout")) * time.Second
	if wait > farAbove*c.TwinWait {
		c.warn("innodb_lock_wait_timeout", fmt.Sprintf("it is %v: when a copy, or a message at a version gate, gives up after TwinWait, %v, its statement keeps "+
			"waiting on the server", wait, c.TwinWait), fmt.Sprintf(
			"put it into the connection string, for instance ?innodb_lock_wait_timeout=%d", int(2*c.TwinWait/time.Second)))
	}
}
