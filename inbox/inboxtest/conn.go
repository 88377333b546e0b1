package inboxtest

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"syscall"

	"github.com/millrace-go/millrace/internal/lent"
)

// The errors that faults return to a process.
var (
	errDead   = errors.New("inboxtest: the process is dead")
	errLost   = &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}
	errFailed = errors.New("inboxtest: refused")
	errCut    = fmt.Errorf("inboxtest: interrupted: %w", context.DeadlineExceeded)
	errPanic  = errors.New("inboxtest: a panic")
	errAbort  = errors.New("inboxtest: the transaction is aborted, as PostgreSQL does after an error")
)

// connector opens the connections of a process. Faults can happen at every call on them.
type connector struct {
	driver.Connector
	process *Process
}

func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	if c.process.dead() {
		return nil, errDead
	}
	inner, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	opened := &conn{inner: inner, process: c.process}
	c.process.opened(opened)
	return opened, nil
}

// conn is a connection of a process.
type conn struct {
	process *Process

	mu       sync.Mutex // held during each call of the driver
	inner    driver.Conn
	lost     bool
	prepared []*prepared // what is not closed

	tx      context.Context //nolint:containedctx // that of BeginTx: Commit and Rollback take none
	aborted bool
	begun   *step // the call of a statement that the driver wants prepared first
}

// sever breaks the connection: the server rolls its transaction back. SQLite does so once every statement is closed.
func (c *conn) sever() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost {
		return
	}
	c.lost = true
	for _, p := range c.prepared {
		_ = p.inner.Close()
	}
	_ = c.inner.Close()
}

// abort makes the transaction refuse all statements, if the database does so after an error.
func (c *conn) abort() { c.aborted = c.tx != nil && c.process.play.abortsOnError }

// interrupted simulates a context that ends while its statement runs. SQLite rolls the whole
// transaction back if the statement writes, and continues without one; the other drivers close the
// connection.
func (c *conn) interrupted(ctx context.Context, query string) {
	if !c.process.play.survivesInterrupts {
		c.sever()
		return
	}
	if c.tx == nil || !read(c.process.play.dialect, query).writes {
		return
	}
	_ = c.locked(context.WithoutCancel(ctx), func(context.Context) error { // nobody to report an error to
		statement, err := c.inner.Prepare("ROLLBACK")
		if err != nil {
			return err
		}
		defer statement.Close()      //nolint:errcheck // the same
		_, err = statement.Exec(nil) //nolint:staticcheck // every driver has it
		return err
	})
}

// locked calls the driver. The call ends when the process dies.
func (c *conn) locked(ctx context.Context, act func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.process.life, cancel)() //nolint:contextcheck // the process's
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost {
		return errLost
	}
	return act(ctx)
}

// do makes a call at which faults can happen.
func (c *conn) do(ctx context.Context, k kind, query string, act func(context.Context) error) error {
	now, said := c.begun, read(c.process.play.dialect, query)
	c.begun = nil
	if now == nil || now.text != query {
		if k == statement && c.tx == nil && said.writes {
			k = write
		}
		stack := callers()
		c.process.wiring.statement(c, ctx, query, said, stack)
		var err error
		cut := func() { c.interrupted(ctx, query) }
		now, err = c.process.begin(ctx, call{kind: k, what: said.what, text: query, sever: c.sever, abort: c.abort, cut: cut}, stack)
		if err != nil {
			return err
		}
	}
	if c.aborted && query != "ROLLBACK" && !said.undoes { // the server knows the savepoints that were set before
		return now.end(ctx, errAbort)
	}
	err := c.locked(ctx, act)
	c.aborted = c.aborted && (err != nil || !said.undoes)
	if errors.Is(err, driver.ErrSkip) {
		c.begun = now // database/sql prepares the statement and calls again
		return err
	}
	return now.end(ctx, err)
}

func (c *conn) BeginTx(ctx context.Context, options driver.TxOptions) (driver.Tx, error) {
	began, able := c.inner.(driver.ConnBeginTx)
	if !able {
		return nil, errors.New("inboxtest: the driver has no BeginTx")
	}
	whole, cancel := context.WithCancel(ctx)          // a driver may watch it until the transaction ends
	stop := context.AfterFunc(c.process.life, cancel) //nolint:contextcheck // the process's
	t := &transaction{conn: c, release: func() { stop(); cancel() }}
	err := c.do(ctx, statement, "BEGIN", func(context.Context) error {
		var err error
		t.inner, err = began.BeginTx(whole, options)
		return err
	})
	if err != nil {
		t.release()
		return nil, err
	}
	c.tx, c.aborted = ctx, false
	return t, nil
}

// WithConn calls use with the driver's own connection, for features beyond the interfaces of
// database/sql/driver.
func (c *conn) WithConn(use func(driver.Conn) error) error {
	return c.locked(context.Background(), func(context.Context) error { return use(c.inner) })
}

func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	inner, able := c.inner.(driver.ExecerContext)
	if !able {
		return nil, driver.ErrSkip
	}
	var result driver.Result
	run := func(ctx context.Context) (err error) {
		result, err = inner.ExecContext(ctx, query, args)
		return err
	}
	if use := lent.Of(ctx); use != nil {
		return nil, c.borrow(ctx, use, run)
	}
	err := c.do(ctx, statement, query, run)
	return result, err
}

// borrow is do for the statement that runs on the borrowed connection. What borrows it fails in any case.
func (c *conn) borrow(ctx context.Context, use *lent.Use, run func(context.Context) error) error {
	var failed error
	err := c.do(ctx, statement, use.Text, func(ctx context.Context) error {
		failed = run(ctx)
		if use.Done {
			return use.Err
		}
		return failed
	})
	if !use.Done {
		return err
	}
	use.Err = err
	return failed
}

func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	inner, able := c.inner.(driver.QueryerContext)
	if !able {
		return nil, driver.ErrSkip
	}
	var result driver.Rows
	err := c.do(ctx, statement, query, func(ctx context.Context) error {
		rows, err := inner.QueryContext(ctx, query, args)
		if err == nil {
			result, err = readAll(rows)
		}
		return err
	})
	return result, err
}

func (c *conn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	p := &prepared{conn: c, query: query}
	err := c.locked(ctx, func(ctx context.Context) (err error) {
		if able, ok := c.inner.(driver.ConnPrepareContext); ok {
			p.inner, err = able.PrepareContext(ctx, query)
		} else {
			p.inner, err = c.inner.Prepare(query)
		}
		if err == nil {
			c.prepared = append(c.prepared, p)
		}
		return err
	})
	if err != nil {
		if c.begun != nil {
			err = c.begun.end(ctx, err)
			c.begun = nil
		}
		return nil, err
	}
	return p, nil
}

func (c *conn) Prepare(query string) (driver.Stmt, error) {
	return c.PrepareContext(context.Background(), query)
}

func (c *conn) Begin() (driver.Tx, error) {
	return c.BeginTx(context.Background(), driver.TxOptions{})
}

func (c *conn) Close() error {
	c.process.closed(c)
	c.sever()
	return nil
}

func (c *conn) Ping(ctx context.Context) error {
	return c.locked(ctx, func(ctx context.Context) error {
		if inner, able := c.inner.(driver.Pinger); able {
			return inner.Ping(ctx)
		}
		return nil
	})
}

func (c *conn) ResetSession(ctx context.Context) error {
	return c.locked(ctx, func(ctx context.Context) error {
		if inner, able := c.inner.(driver.SessionResetter); able {
			return inner.ResetSession(ctx)
		}
		return nil
	})
}

func (c *conn) IsValid() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	inner, able := c.inner.(driver.Validator)
	return !c.lost && (!able || inner.IsValid())
}

func (c *conn) CheckNamedValue(v *driver.NamedValue) error {
	if inner, able := c.inner.(driver.NamedValueChecker); able {
		return inner.CheckNamedValue(v)
	}
	return driver.ErrSkip
}

// transaction is a transaction on a conn.
type transaction struct {
	conn    *conn
	inner   driver.Tx
	release func()
}

func (t *transaction) Commit() error   { return t.end(commit, "COMMIT", t.inner.Commit) }
func (t *transaction) Rollback() error { return t.end(statement, "ROLLBACK", t.inner.Rollback) }

func (t *transaction) end(k kind, what string, act func() error) error {
	defer t.release()
	defer func() { t.conn.tx, t.conn.aborted = nil, false }()
	err := t.conn.do(t.conn.tx, k, what, func(context.Context) error { return act() })
	if err != nil && !errors.Is(err, errDead) { // the connection goes back to the pool
		_ = t.conn.locked(context.Background(), func(context.Context) error { return t.inner.Rollback() })
	}
	return err
}

// prepared is a prepared statement, of the service or because the driver needs it.
type prepared struct {
	conn  *conn
	inner driver.Stmt
	query string
}

func (p *prepared) Close() error {
	return p.conn.locked(context.Background(), func(context.Context) error {
		p.conn.prepared = slices.DeleteFunc(p.conn.prepared, func(other *prepared) bool { return other == p })
		return p.inner.Close()
	})
}

func (p *prepared) NumInput() int { return p.inner.NumInput() }

func (p *prepared) CheckNamedValue(v *driver.NamedValue) error {
	if inner, able := p.inner.(driver.NamedValueChecker); able {
		return inner.CheckNamedValue(v)
	}
	return p.conn.CheckNamedValue(v)
}

func (p *prepared) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	var result driver.Result
	err := p.conn.do(ctx, statement, p.query, func(ctx context.Context) (err error) {
		if inner, able := p.inner.(driver.StmtExecContext); able {
			result, err = inner.ExecContext(ctx, args)
		} else {
			result, err = p.inner.Exec(values(args)) //nolint:staticcheck // for old drivers
		}
		return err
	})
	return result, err
}

func (p *prepared) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	var result driver.Rows
	err := p.conn.do(ctx, statement, p.query, func(ctx context.Context) (err error) {
		var rows driver.Rows
		if inner, able := p.inner.(driver.StmtQueryContext); able {
			rows, err = inner.QueryContext(ctx, args)
		} else {
			rows, err = p.inner.Query(values(args)) //nolint:staticcheck // for old drivers
		}
		if err == nil {
			result, err = readAll(rows)
		}
		return err
	})
	return result, err
}

func (p *prepared) Exec(args []driver.Value) (driver.Result, error) {
	return p.ExecContext(context.Background(), named(args))
}

func (p *prepared) Query(args []driver.Value) (driver.Rows, error) {
	return p.QueryContext(context.Background(), named(args))
}
