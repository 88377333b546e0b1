package checkup

import (
	"context"
	"fmt"
	"strings"
)

func (c *Checkup) postgres() {
	v := c.settings
	if version := v.number("server_version_num"); version < 130000 {
		c.fail("server", fmt.Sprintf("PostgreSQL %d is too old", version/10000), "update it to 13 or newer")
	}
	switch {
	case v["in_recovery"] == "true":
		c.fail("server", "it is a replica, which takes no writes", "give the inbox the primary; "+
			"target_session_attrs=read-write in the connection string finds it among several hosts")
	case v["default_transaction_read_only"] == "on":
		c.fail("default_transaction_read_only", "transactions are read-only",
			"remove it from the connection string, or ALTER ROLE … RESET default_transaction_read_only")
	}
	for _, setting := range []string{"synchronous_commit", "fsync", "full_page_writes"} {
		if v[setting] == "off" {
			c.warn(setting, "it is off: when the server crashes, messages that were acked can lose their effects",
				"turn it on")
		}
	}
	c.postgresTimeouts()
	if level := v["default_transaction_isolation"]; level != "read committed" {
		c.warn("default_transaction_isolation", fmt.Sprintf("it is %s, but claims need read committed: setting that "+
			"costs a round trip per transaction with some drivers", level), c.postgresRemedy(
			"default_transaction_isolation", "read%20committed", "read committed"))
	}
}

func (c *Checkup) postgresTimeouts() {
	const idle = "idle_in_transaction_session_timeout"
	v := c.settings
	remedy := c.postgresRemedy(idle, "30000", "30s")
	switch source := v[idle+".source"]; {
	case v.number(idle) == 0:
		if v.number("tcp_keepalives_idle") > 600 && v.number("tcp_user_timeout") == 0 {
			remedy += ", and with it tcp_keepalives_idle=60 for hosts that vanish in the middle of a statement"
		}
		c.warn(idle, "it is 0: a host that freezes or vanishes keeps its claims until TCP gives up, often for hours", remedy)
	case c.pooled && (source == "client" || source == "session"):
		c.warn(idle, "a pooler in transaction mode is in front of the server, so one connection's setting applies to "+
			"other connections, or to none", remedy)
	}
	if v.number("lock_timeout") == 0 {
		c.warn("lock_timeout", "it is 0: a statement whose client vanished can wait for a lock for ever, and keeps its "+
			"own locks meanwhile", c.postgresRemedy("lock_timeout", "10000", "10s"))
	}
}

// postgresRemedy returns how to change a setting for every connection.
func (c *Checkup) postgresRemedy(setting, parameter, value string) string {
	if c.pooled {
		return fmt.Sprintf("ALTER ROLE … SET %s = '%s': the pooler in front of the server drops or mixes up the settings in a "+
			"connection string", setting, value)
	}
	return fmt.Sprintf("put it into the connection string, for instance postgres://…/db?%s=%s", setting, parameter)
}

// statistics checks that the background work may renew the planner's statistics of the tables.
func (c *Checkup) statistics(ctx context.Context) error {
	const planMode = "plan_cache_mode"
	var tables []string
	if err := c.DB.SelectContext(ctx, &tables, c.Dialect.SelectUnanalysed); err != nil {
		return fmt.Errorf("read which tables the user may analyse: %w", err)
	}
	if len(tables) == 0 || c.settings[planMode] == "force_custom_plan" {
		return nil
	}
	c.warn("statistics", "the user may not ANALYZE "+strings.Join(tables, ", ")+": plans that were made while a table was almost "+
		"empty can stay slow for a minute, or for ever if autovacuum is off", "give the tables to a role of which the user is a member; "+
		"or, from PostgreSQL 17 on, GRANT MAINTAIN on them; or "+c.postgresRemedy(planMode, "force_custom_plan", "force_custom_plan"))
	return nil
}
