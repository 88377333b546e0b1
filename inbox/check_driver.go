package inbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/owned"
)

// driver checks whether the driver does what database/sql expects of it.
func (c *inspection) driver(ctx context.Context) error {
	s := c.store
	if s.dialect.Name == dialect.MySQLName {
		c.multiStatements(ctx)
	}
	if c.failed() || !s.dialect.OneWriter {
		return nil
	}
	leave, err := s.db.Enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if err := owned.Guarded(ctx, s.db.DB); errors.Is(err, owned.ErrNoHook) {
		c.fail("driver", "it has no commit hook, or a wrapper hides it: what a handler writes after SQLite rolled its "+
			"transaction back would be committed without the claim", "use modernc.org/sqlite or mattn/go-sqlite3, and give "+
			"what wraps the driver's connection a method Raw() driver.Conn")
		return nil
	} else if err != nil {
		return fmt.Errorf("look for the driver's commit hook: %w", err)
	}
	keeps, err := s.dialect.KeepsFailedCommit(ctx, s.db.DB)
	switch kind := dialect.Classify(err); {
	case err != nil && (ctx.Err() != nil || kind == dialect.Unavailable || kind == dialect.Contention):
		return fmt.Errorf("try a COMMIT that fails: %w", err)
	case err != nil:
		c.warn("driver", fmt.Sprintf("Check could not try whether it ends a transaction whose COMMIT failed (%v)", err),
			"let SQLite make temporary tables")
	case keeps:
		c.fail("driver", "it leaves a transaction open whose COMMIT failed, and the pool then gives the connection to another "+
			"transaction, whose writes are never committed", "use modernc.org/sqlite 1.46.1 or newer")
	}
	return nil
}

// multiStatements warns if the driver sends several statements at once, which only mysqldb needs.
func (c *inspection) multiStatements(ctx context.Context) {
	conn, err := c.store.db.Connx(ctx)
	if err != nil {
		return // the other checks say so
	}
	defer conn.Close() //nolint:errcheck // goes back to the pool
	if _, err := conn.ExecContext(ctx, `DO 1; DO 2`); err != nil {
		return
	}
	needed := false
	_ = conn.Raw(func(driverConn any) error { // it cannot fail
		needed = owned.Wraps(driverConn, "*mysqldb.conn")
		return nil
	})
	if !needed {
		c.warn("multiStatements", "it is on: SQL that somebody injects into a query of the service can add statements of its own",
			"remove it from the connection string, or use the driver mysqldb, which needs it")
	}
}
