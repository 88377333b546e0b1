package checkup

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/millrace-go/millrace/internal/dialect"
)

// settings are the server's settings, as a connection of the pool sees them.
type settings map[string]string

// number returns 0 if the setting is missing or is no number.
func (s settings) number(name string) int64 {
	n, _ := strconv.ParseInt(s[name], 10, 64) //nolint:errcheck // documented
	return n
}

// server reads and judges the settings.
func (c *Checkup) server(ctx context.Context) error {
	var err error
	if c.settings, err = c.Dialect.Settings(ctx, c.DB); err != nil {
		return fmt.Errorf("read the settings: %w", err)
	}
	c.pooled, err = c.sharedBackend(ctx)
	for try := 0; try < 2 && errors.Is(err, driver.ErrBadConn); try++ {
		c.pooled, err = c.sharedBackend(ctx) // database/sql tries another connection only where it chose the first
	}
	if err != nil {
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

// sharedBackend reports whether one server process serves two open connections: then a pooler in
// transaction mode is in front of the server.
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
		if deadline, _ := waiting.Deadline(); waiting.Err() != nil || time.Now().After(deadline) { // a dialer has a timer of its own
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

// poolSize compares the pool's bound with the server's.
func (c *Checkup) poolSize() {
	most, inFlight := c.settings.number("max_connections"), c.MaxInFlight
	switch {
	case c.pool == 0:
		c.warn("pool", fmt.Sprintf("it has no bound, but the server refuses more than %d connections", most),
			"set db.SetMaxOpenConns to the number of messages handled at once, plus some for the rest of the service; "+
				"if stdlib.OpenDBFromPool made the pool, the MaxConns of the pgxpool, which database/sql cannot see")
	case c.pool == 1:
		c.warn("pool", "it has one connection, so messages are handled one by one, and a handler that uses the pool "+
			"waits for its own connection", "call db.SetMaxOpenConns(2) or more")
	case most > 0 && int64(c.pool) > most:
		c.warn("pool", fmt.Sprintf("it may open %d connections, but the server refuses more than %d", c.pool, most),
			"set a smaller db.SetMaxOpenConns, or a larger max_connections")
	}
	if c.pool > 1 && inFlight >= c.pool {
		c.warn("MaxInFlight", fmt.Sprintf("%d messages handled at once take all %d connections of the pool: everything else "+
			"waits for a handler to end", inFlight, c.pool), "set db.SetMaxOpenConns above it, or a smaller Config.MaxInFlight")
	}
}
