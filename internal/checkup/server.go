package checkup

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/millrace-go/millrace/internal/dialect"
)

// settings are the server's, as a connection of the pool has them.
type settings map[string]string

// number returns 0 for what is not there.
func (s settings) number(name string) int64 {
	n, _ := strconv.ParseInt(s[name], 10, 64) //nolint:errcheck // documented
	return n
}

// server reads the settings and looks at them.
func (c *Checkup) server(ctx context.Context) error {
	var err error
	if c.settings, err = c.readSettings(ctx); err != nil {
		return fmt.Errorf("read the settings: %w", err)
	}
	if c.pooled, err = c.sharedBackend(ctx); err != nil {
		return fmt.Errorf("ask for the server process: %w", err)
	}
	c.judgeSettings()
	return nil
}

func (c *Checkup) judgeSettings() {
	switch c.Dialect.Name {
	case dialect.PostgresName:
		c.postgres()
		c.poolSize()
	case dialect.MySQLName:
		c.mysql()
		c.poolSize()
	case dialect.SQLiteName:
		c.sqlite()
	}
}

func (c *Checkup) readSettings(ctx context.Context) (settings, error) {
	rows, err := c.DB.QueryContext(ctx, c.Dialect.SelectSettings)
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // rows.Err tells
	found := make(settings)
	for rows.Next() {
		var name, value string
		if err := rows.Scan(&name, &value); err != nil {
			return nil, err
		}
		found[name] = value
	}
	return found, rows.Err()
}

// sharedBackend reports whether one server process serves two connections that are open at
// once: then a pooler in transaction mode stands between.
func (c *Checkup) sharedBackend(ctx context.Context) (bool, error) {
	const patience = time.Second // the rest of the service may hold the second connection
	if c.pool == 1 || c.Dialect.OneWriter {
		return false, nil
	}
	first, err := c.DB.Connx(ctx)
	if err != nil {
		return false, err
	}
	defer first.Close() //nolint:errcheck // goes back to the pool
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	second, err := c.DB.Connx(waiting)
	if err != nil {
		if waiting.Err() != nil {
			return false, ctx.Err()
		}
		return false, err
	}
	defer second.Close() //nolint:errcheck // goes back to the pool
	var one, other string
	if err := first.GetContext(ctx, &one, c.Dialect.SelectBackend); err != nil {
		return false, err
	}
	if err := second.GetContext(ctx, &other, c.Dialect.SelectBackend); err != nil {
		return false, err
	}
	return one == other, nil
}

// poolSize looks at the pool's bound, where the server has one too.
func (c *Checkup) poolSize() {
	most, inFlight := c.settings.number("max_connections"), c.MaxInFlight
	switch {
	case c.pool == 0:
		c.warn("pool", fmt.Sprintf("it has no bound, and the server refuses more than %d connections", most),
			"db.SetMaxOpenConns: the number of messages in work at once, and some for the rest of the service; "+
				"where stdlib.OpenDBFromPool made it, the MaxConns of the pgxpool, which cannot be seen through database/sql")
	case c.pool == 1:
		c.warn("pool", "it has one connection, so messages are handled one by one, and a handler that uses the pool "+
			"waits for itself", "db.SetMaxOpenConns(2) or more")
	case most > 0 && int64(c.pool) > most:
		c.warn("pool", fmt.Sprintf("it may open %d connections, and the server refuses more than %d", c.pool, most),
			"a smaller db.SetMaxOpenConns, or a greater max_connections")
	}
	if c.pool > 1 && inFlight >= c.pool {
		c.warn("MaxInFlight", fmt.Sprintf("%d messages in work take all %d connections of the pool, and what else needs "+
			"one waits for a handler to end", inFlight, c.pool), "db.SetMaxOpenConns above it, or a smaller Config.MaxInFlight")
	}
}
