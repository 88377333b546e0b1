package checkup

import (
	"fmt"
	"strings"
)

// sqliteRemedy returns how to set a pragma on every connection. A PRAGMA statement would set it on
// only one.
func sqliteRemedy(pragma, value string) string {
	return fmt.Sprintf("put it into the connection string, so that every connection of the pool has it: "+
		"?_pragma=%s(%s) for modernc.org/sqlite, ?_%s=%s for mattn/go-sqlite3", pragma, value, pragma, value)
}

func (c *Checkup) sqlite() {
	v := c.settings
	if v["file"] == "" {
		c.sqliteMemory()
		return
	}
	if mode := strings.ToLower(v["journal_mode"]); mode != "wal" {
		c.fail("journal_mode", fmt.Sprintf("it is %q: readers lock out the writer, and the writer locks out all readers", mode),
			sqliteRemedy("journal_mode", "WAL"))
	}
	switch v.number("synchronous") {
	case 0:
		c.warn("synchronous", "it is OFF: a crash of the host can lose commits and corrupt the file",
			sqliteRemedy("synchronous", "FULL"))
	case 1:
		c.warn("synchronous", "it is NORMAL: in WAL mode a commit reaches the disk only later, and when power fails "+
			"messages that were acked can lose their effects", sqliteRemedy("synchronous", "FULL"))
	}
	if files := v["attached"]; files != "" {
		c.warn("attached", fmt.Sprintf("the connection has attached other files (%s): in WAL mode SQLite commits each file by itself, "+
			"so a crash can keep a claim and lose what its handler wrote into them", files), "let handlers write into the file of the inbox alone")
	}
	if wait := v.number("busy_timeout"); wait < 1000 {
		c.warn("busy_timeout", fmt.Sprintf("it is %d milliseconds: while another process writes, a claim fails at once", wait),
			sqliteRemedy("busy_timeout", "10000"))
	}
	if v.number("query_only") != 0 {
		c.fail("query_only", "the connection takes no writes", "remove the pragma query_only from the connection string")
	}
}

func (c *Checkup) sqliteMemory() {
	if c.pool != 1 {
		c.fail("file", "the database is in memory: every connection of the pool has a database of its own, "+
			"or, with cache=shared, locks out the others", "name a file, or call db.SetMaxOpenConns(1)")
		return
	}
	c.warn("file", "the database is in memory: its data is lost with the connection", "name a file, except in tests")
}
