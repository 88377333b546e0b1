package pgxdb

import (
	"context"
	"database/sql/driver"
	"errors"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/ambient"
	"github.com/millrace-go/millrace/internal/lent"
)

// Errors of a transaction that [Tx] returned.
var (
	// ErrOwned says that only the one who began the transaction ends it.
	ErrOwned = errors.New("pgxdb: the handler's transaction is ended by the one who began it: to commit it, return nil; to roll it back, return an error")

	// ErrBusy says that rows or a batch are open. Close them before the next call, also before a message is published
	// through the outbox.
	ErrBusy = ambient.ErrBusy

	errOtherDriver = errors.New("pgxdb: the transaction is on a connection of another driver than pgx")
)

// Tx returns the transaction of inbox.Tx, and of outbox.InTx, as a pgx.Tx. Its Begin sets a savepoint; its own Commit and
// Rollback return [ErrOwned]. Like every pgx.Tx it is used by one goroutine at a time, and rows and batches must be closed
// before the next call, which returns [ErrBusy], and so does outbox.Publisher. A statement of inbox.Tx waits for them instead. What
// is open when ctx ends, or the handler has returned, is closed then. Conn may be used until ctx ends. LargeObjects does
// not work.
//
// It returns the errors of inbox.Tx, and an error if the transaction is not one of pgx.
func Tx(ctx context.Context) (pgx.Tx, error) {
	tx, err := inbox.Tx(ctx)
	if err != nil {
		return nil, err
	}
	t := &native{ctx: ctx, tx: tx, run: ambient.From(ctx), savepoints: new(atomic.Int64)}
	if err := t.with(ctx, "BORROW", func(c *pgx.Conn) error { t.conn = c; return nil }); err != nil {
		return nil, err
	}
	return t, nil
}

// native is a transaction of database/sql as one of pgx. It uses the connection only while database/sql lends it, since
// database/sql rolls back at any time when ctx ends.
type native struct {
	ctx  context.Context //nolint:containedctx // at its end database/sql rolls back
	tx   *sqlx.Tx
	conn *pgx.Conn
	run  *ambient.Tx // lends the connection to rows and batches

	savepoints *atomic.Int64 // so far, of which this may be one
	over       bool          // as a savepoint may be
	within     *native       // of a savepoint
}

// ended reports whether t, or what it is within, is over.
func (t *native) ended() bool { return t.over || t.within != nil && t.within.ended() }

// borrow is an argument of a statement that is not run. Instead, use is called with the connection. It reaches the
// connection through pgx's driver as well as through this package's.
type borrow struct{ use func(*pgx.Conn) }

var errBorrowed = errors.New("the connection was borrowed")

// RewriteQuery is called by pgx before it runs a statement.
func (b *borrow) RewriteQuery(_ context.Context, c *pgx.Conn, _ string, _ []any) (string, []any, error) {
	b.use(c)
	return "", nil, errBorrowed
}

// Value is asked for by other drivers than those of pgx.
func (*borrow) Value() (driver.Value, error) { return nil, errOtherDriver }

// with calls use, which runs a statement, while nobody else uses the connection.
func (t *native) with(ctx context.Context, statement string, use func(*pgx.Conn) error) error {
	switch {
	case t.ended():
		return pgx.ErrTxClosed
	case t.run.Lent():
		return ErrBusy
	}
	return t.borrow(ctx, statement, use)
}

func (t *native) borrow(ctx context.Context, statement string, use func(*pgx.Conn) error) error {
	u := &lent.Use{Text: statement}
	_, err := t.tx.ExecContext(lent.With(ctx, u), "", &borrow{func(c *pgx.Conn) {
		u.Done, u.Err = true, use(c)
	}})
	if u.Done {
		return u.Err
	}
	return err
}

func (t *native) Commit(context.Context) error   { return ErrOwned }
func (t *native) Rollback(context.Context) error { return ErrOwned }
func (t *native) Conn() *pgx.Conn                { return t.conn }
func (t *native) LargeObjects() pgx.LargeObjects { return pgx.LargeObjects{} }

func (t *native) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	err = t.with(ctx, sql, func(c *pgx.Conn) (err error) {
		tag, err = c.Exec(ctx, sql, args...)
		return err
	})
	return tag, err
}

func (t *native) Prepare(ctx context.Context, name, sql string) (plan *pgconn.StatementDescription, err error) {
	err = t.with(ctx, "PREPARE "+sql, func(c *pgx.Conn) (err error) {
		plan, err = c.Prepare(ctx, name, sql)
		return err
	})
	return plan, err
}

func (t *native) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, source pgx.CopyFromSource) (n int64, err error) {
	err = t.with(ctx, "COPY "+table.Sanitize()+" FROM STDIN", func(c *pgx.Conn) (err error) {
		n, err = c.CopyFrom(ctx, table, columns, source)
		return err
	})
	return n, err
}

func (t *native) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	c, l, err := t.lend(ctx, sql)
	if err != nil {
		return &noRows{err: err}, err
	}
	r := &rows{loan: l}
	l.send(ctx, c, func() { r.Rows, err = c.Query(ctx, sql, args...) })
	if err != nil {
		r.Close()
	} else {
		t.bound(l, r.Rows.Close)
	}
	return r, err
}

func (t *native) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	r, _ := t.Query(ctx, sql, args...) // the rows tell the error too
	return row{r}
}

func (t *native) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if failed := pgx.FailedBatchResults(b, ErrOwned); failed.Tx() != nil { // it would begin and commit a transaction
		return failed
	}
	c, l, err := t.lend(ctx, statementsOf(b))
	if err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	r := &batch{loan: l}
	l.send(ctx, c, func() {
		r.BatchResults = c.SendBatch(ctx, r.copied(b))
		if !c.PgConn().IsBusy() { // nothing was sent
			r.callbacks = nil
		}
	})
	t.bound(l, func() { _ = r.BatchResults.Close() }) // whoever reads the results gets the reason
	return r
}

// statementsOf returns the statements of a batch.
func statementsOf(b *pgx.Batch) string {
	all := make([]string, len(b.QueuedQueries))
	for i, q := range b.QueuedQueries {
		all[i] = q.SQL
	}
	return strings.Join(all, "; ")
}

// lend borrows the connection for a statement until the loan is over.
func (t *native) lend(ctx context.Context, statement string) (*pgx.Conn, *loan, error) {
	switch {
	case t.ended():
		return nil, nil, pgx.ErrTxClosed
	case !t.run.Lend():
		return nil, nil, ErrBusy
	}
	lent, back, done := make(chan *pgx.Conn), make(chan struct{}), make(chan error, 1)
	go func() {
		done <- t.borrow(ctx, statement, func(c *pgx.Conn) error {
			lent <- c
			<-back
			return nil
		})
	}()
	select {
	case err := <-done:
		t.run.Return()
		return nil, nil, err
	case c := <-lent:
		return c, &loan{give: func() {
			close(back)
			<-done //nolint:errcheck // the caller has met the error, or ends the loan
			t.run.Return()
		}}, nil
	}
}

// bound ends a loan at the end of the context, and once the handler has returned, unless it is over by then.
func (t *native) bound(l *loan, end func()) {
	l.Lock()
	defer l.Unlock()
	l.stop = context.AfterFunc(t.ctx, func() { l.cut(t.ctx.Err(), end) })
	t.run.OnReclaim(func() { l.cut(inbox.ErrTxEnded, end) })
}
