package flight

import (
	"context"
	"database/sql/driver"
	"slices"
	"strings"
)

// Statement is one that a [Wire] sends.
type Statement struct {
	SQL  string
	Args []any
	Late *Late // nil unless it waited for COMMIT
}

// Wire sends statements on a driver's connection.
type Wire interface {
	// Begin returns the statement that begins a transaction, empty if the driver must begin it at once.
	Begin(options driver.TxOptions) string

	// Send sends statements in one flight, and returns the result of the last one. If one fails, the server runs none of
	// those after it, and failed is its index, or negative if the server does not say. If one cannot be sent, none is, and
	// sent is false.
	Send(ctx context.Context, all []*Statement) (sent bool, result driver.Result, failed int, err error)

	// Commit is Send for statements of which the last is a COMMIT.
	Commit(ctx context.Context, all []*Statement) (sent bool, failed int, err error)

	// Refused reports whether err is the server's answer to a statement before the COMMIT.
	Refused(err error) bool

	// Rollback rolls back.
	Rollback(ctx context.Context) error

	// Open reports whether the server has a transaction in which statements can run.
	Open() bool

	// Ordinary reports whether a statement with these arguments can be sent with others.
	Ordinary(args []driver.NamedValue) bool
}

// Link is a connection whose transactions take fewer flights: BEGIN is sent with the first statement, and statements that
// may wait with COMMIT. Like every driver's connection it is used by one goroutine at a time.
type Link struct {
	inner Inner
	wire  Wire // nil if the driver is set up in a way that no wire knows
	tx    *transaction
}

// Inner is what the driver's connection must be able to do.
type Inner interface {
	driver.Conn
	driver.ConnPrepareContext
	driver.ConnBeginTx
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
	driver.NamedValueChecker
	driver.SessionResetter
}

// NewLink returns a connection on top of a driver's.
func NewLink(inner Inner, wire Wire) *Link { return &Link{inner: inner, wire: wire} }

// transaction is one that may not have begun on the server.
type transaction struct {
	*Link
	ctx     context.Context //nolint:containedctx // that of BeginTx bounds COMMIT and ROLLBACK, as in pgx
	begin   string          // BEGIN, while it has not been sent
	waiting []*Statement    // for COMMIT
	bytes   int             // of their arguments
	failed  error           // of BEGIN: there is no transaction, so nothing may be sent
	doomed  error           // of a statement that waited: on MySQL the transaction would go on without it
	used    bool            // by the caller's savepoints, or by the inner connection: nothing waits for COMMIT any more
}

// CheckNamedValue leaves arguments to the driver.
func (c *Link) CheckNamedValue(v *driver.NamedValue) error { return c.inner.CheckNamedValue(v) }

// Ping asks the server for an answer.
func (c *Link) Ping(ctx context.Context) error { return c.inner.Ping(ctx) }

// Close closes the connection.
func (c *Link) Close() error { return c.inner.Close() }

// ResetSession is called before the connection is used again.
func (c *Link) ResetSession(ctx context.Context) error {
	if c.tx != nil { // database/sql ends each transaction
		return driver.ErrBadConn
	}
	return c.inner.ResetSession(ctx)
}

// IsValid reports whether the pool may keep the connection.
func (c *Link) IsValid() bool {
	inner, tells := c.inner.(driver.Validator)
	return !tells || inner.IsValid()
}

// Pending reports whether BEGIN has not been sent yet.
func (c *Link) Pending() bool { return c.tx != nil && c.tx.begin != "" }

// Prepare is PrepareContext without a context.
func (c *Link) Prepare(query string) (driver.Stmt, error) {
	return c.PrepareContext(context.Background(), query)
}

// PrepareContext prepares a statement for the caller.
func (c *Link) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	if err := c.before(ctx, query); err != nil {
		return nil, err
	}
	inner, err := c.inner.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	return &prepared{inner, c}, nil
}

// QueryContext runs a query.
func (c *Link) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if err := c.before(ctx, query); err != nil {
		return nil, err
	}
	return c.inner.QueryContext(ctx, query, args)
}

// ExecContext runs a statement. BEGIN is sent in the same flight, and what waits before it.
func (c *Link) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	t := c.tx
	if late := Of(ctx); late != nil && t.defers() {
		s := &Statement{query, values(args), late}
		if bytes := s.bytes(); bytes <= mostBytes {
			return t.wait(ctx, s, bytes)
		}
	}
	if t != nil && t.begin != "" && len(t.waiting) == 0 && c.wire.Ordinary(args) {
		return t.exec(ctx, query, args)
	}
	if err := c.before(ctx, query); err != nil {
		return nil, err
	}
	return c.inner.ExecContext(ctx, query, args)
}

// Begin is BeginTx without a context.
func (c *Link) Begin() (driver.Tx, error) {
	return c.BeginTx(context.Background(), driver.TxOptions{})
}

// BeginTx begins a transaction, but sends nothing yet.
func (c *Link) BeginTx(ctx context.Context, options driver.TxOptions) (driver.Tx, error) {
	begin := ""
	if c.wire != nil {
		begin = c.wire.Begin(options)
	}
	if begin == "" {
		return c.inner.BeginTx(ctx, options)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c.tx = &transaction{Link: c, ctx: ctx, begin: begin}
	return c.tx, nil
}

// Direct sends what waits, and lets nothing wait any more.
func (c *Link) Direct() error {
	if c.tx == nil {
		return nil
	}
	c.tx.used = true
	return c.flush(c.tx.ctx)
}

// before prepares for a statement that the driver sends.
func (c *Link) before(ctx context.Context, query string) error {
	if c.tx == nil {
		return nil
	}
	if strings.Contains(strings.ToLower(query), "savepoint") { // what waits must not be sent after a ROLLBACK TO SAVEPOINT
		c.tx.used = true
	}
	return c.flush(ctx)
}

// flush sends what waits.
func (c *Link) flush(ctx context.Context) error {
	if c.tx == nil || !c.tx.waits() {
		return nil
	}
	_, _, err := c.tx.send(ctx, nil)
	return err
}

// waits reports whether something has to be sent before the next statement, or was refused.
func (t *transaction) waits() bool {
	return t.begin != "" || len(t.waiting) > 0 || t.failed != nil || t.doomed != nil
}

// defers reports whether a statement may wait for COMMIT.
func (t *transaction) defers() bool {
	return t != nil && !t.used && t.doomed == nil && (t.begin != "" || t.failed == nil && t.wire.Open())
}

// What waits at most. More is sent before COMMIT, and a larger statement at once: its caller learns that it is too large.
const (
	mostWaiting = 100
	mostBytes   = 1 << 20
)

// bytes returns how many bytes the arguments have.
func (s *Statement) bytes() (n int) {
	for _, arg := range s.Args {
		switch arg := arg.(type) {
		case []byte:
			n += len(arg)
		case string:
			n += len(arg)
		}
	}
	return n
}

// wait lets a statement wait for COMMIT. It copies what the caller may change until then.
func (t *transaction) wait(ctx context.Context, s *Statement, bytes int) (driver.Result, error) {
	for i, arg := range s.Args {
		if arg, is := arg.([]byte); is {
			s.Args[i] = slices.Clone(arg)
		}
	}
	if len(t.waiting) == mostWaiting || t.bytes+bytes > mostBytes {
		if err := t.flush(ctx); err != nil {
			return nil, err
		}
	}
	t.waiting, t.bytes = append(t.waiting, s), t.bytes+bytes
	return driver.RowsAffected(s.Late.Rows), nil
}

// exec sends a statement of the caller's with BEGIN.
func (t *transaction) exec(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	sent, result, err := t.send(ctx, &Statement{SQL: query, Args: values(args)})
	switch {
	case err == nil:
		return result, nil
	case sent || t.failed != nil || t.begin == "" && !t.wire.Open(): // what cannot be prepared makes the transaction fail
		return nil, err
	}
	if err := t.flush(ctx); err != nil {
		return nil, err
	}
	return t.inner.ExecContext(ctx, query, args) // which meets the error as without this package
}

// Commit commits, with all that waits in the same flight.
func (t *transaction) Commit() error {
	t.tx = nil
	switch {
	case t.failed != nil:
		return t.failed
	case t.doomed != nil:
		_ = t.wire.Rollback(t.ctx) // the error says more
		return t.doomed
	case t.begin != "" && len(t.waiting) == 0:
		return nil // nothing was done
	}
	all := t.all(&Statement{SQL: "COMMIT"})
	sent, failed, err := t.wire.Commit(t.ctx, all)
	return t.refused(all, sent, failed, err)
}

// Rollback rolls back.
func (t *transaction) Rollback() error {
	t.tx = nil
	if t.begin != "" || t.failed != nil {
		return nil //nolint:nilerr // it never began
	}
	return t.wire.Rollback(t.ctx)
}

// all returns what waits and then last, unless it is nil.
func (t *transaction) all(last *Statement) []*Statement {
	all := make([]*Statement, 0, len(t.waiting)+2)
	if t.begin != "" {
		all = append(all, &Statement{SQL: t.begin})
	}
	all = append(all, t.waiting...)
	if last != nil {
		all = append(all, last)
	}
	return all
}

// send sends what waits and then last, unless it is nil. What cannot be sent goes on waiting.
func (t *transaction) send(ctx context.Context, last *Statement) (sent bool, result driver.Result, err error) {
	if t.failed != nil {
		return false, nil, t.failed
	}
	if t.doomed != nil {
		return false, nil, t.doomed
	}
	all := t.all(last)
	sent, result, failed, err := t.wire.Send(ctx, all)
	refused := t.refused(all, sent, failed, err)
	if sent {
		switch {
		case err != nil && failed == 0 && t.begin != "":
			t.failed = err
		case err != nil && len(t.waiting) > 0:
			t.doomed = refused
		}
		t.begin, t.waiting, t.bytes = "", nil, 0
	}
	return sent, result, refused
}

// refused returns the error of a statement. If it waited, and the COMMIT was certainly not reached, that is an [Error].
func (t *transaction) refused(all []*Statement, sent bool, failed int, err error) error {
	if err == nil || sent && !t.wire.Refused(err) {
		return err
	}
	if failed >= 0 {
		all = all[failed : failed+1]
	}
	var names []string
	for _, s := range all {
		if s.Late != nil {
			names = append(names, s.Late.What())
		}
	}
	if names == nil {
		return err
	}
	return &Error{What: strings.Join(names, ", or "), Err: err}
}

// prepared is a statement that the caller prepared.
type prepared struct {
	driver.Stmt
	conn *Link
}

// ExecContext sends what waits, and then the statement.
func (p *prepared) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	if err := p.conn.flush(ctx); err != nil {
		return nil, err
	}
	return p.Stmt.(driver.StmtExecContext).ExecContext(ctx, args)
}

// QueryContext sends what waits, and then the query.
func (p *prepared) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	if err := p.conn.flush(ctx); err != nil {
		return nil, err
	}
	return p.Stmt.(driver.StmtQueryContext).QueryContext(ctx, args)
}

// CheckNamedValue leaves arguments to the driver.
func (p *prepared) CheckNamedValue(v *driver.NamedValue) error { return p.conn.CheckNamedValue(v) }

// values returns the arguments as drivers take them.
func values(args []driver.NamedValue) []any {
	all := make([]any, len(args))
	for i := range args {
		all[i] = args[i].Value
	}
	return all
}
