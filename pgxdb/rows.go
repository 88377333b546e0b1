package pgxdb

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// loan is a connection that rows or a batch use. It is locked while they do, since they are closed from elsewhere when
// the context of the transaction ends.
type loan struct {
	sync.Mutex
	over bool
	why  error // why it ended before its time
	give func()
	stop func() bool
}

// send calls what sends a statement. If that panics in what it calls of the caller's, it gives the connection back, and
// closes it if a statement has been sent in part.
func (l *loan) send(ctx context.Context, c *pgx.Conn, statement func()) {
	returned := false
	defer func() {
		if returned { // which runtime.Goexit does not do either
			return
		}
		if c.PgConn().IsBusy() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closing)
			defer cancel()
			_ = c.Close(ctx)
		}
		l.give()
	}()
	statement()
	returned = true
}

// closing is how long a connection may take to tell the server that it closes, as in pgx's driver.
const closing = 5 * time.Second

// cut ends the loan before its time, for a reason that whoever reads gets as the error.
func (l *loan) cut(why error, end func()) {
	l.Lock()
	defer l.Unlock()
	if l.over {
		return
	}
	l.why = why
	end()
	l.finish()
}

// finish gives the connection back. The caller has locked the loan.
func (l *loan) finish() {
	if l.over {
		return
	}
	l.over = true
	if l.stop != nil {
		l.stop()
	}
	l.give()
}

// rows are rows on a loan, which is over when they are closed.
type rows struct {
	pgx.Rows
	*loan
	part bool // of a batch, whose loan it is
	read bool // to the end, or closed, before the loan was cut
}

func (r *rows) Next() bool {
	r.Lock()
	defer r.Unlock()
	if r.why == nil && r.Rows.Next() {
		return true
	}
	r.end()
	return false
}

func (r *rows) Close() {
	r.Lock()
	defer r.Unlock()
	r.end()
}

// end closes the rows, and gives the connection back unless it is the batch's.
func (r *rows) end() {
	if r.why == nil {
		r.Rows.Close()
		r.read = true
	}
	if !r.part {
		r.finish()
	}
}

// Err also tells why rows were closed before they were read.
func (r *rows) Err() error {
	r.Lock()
	defer r.Unlock()
	if err := r.Rows.Err(); err != nil || r.read {
		return err
	}
	return r.why
}

func (r *rows) Scan(dest ...any) error {
	r.Lock()
	defer r.Unlock()
	if r.why != nil {
		return r.why
	}
	return r.closed(r.Rows.Scan(dest...))
}

func (r *rows) Values() ([]any, error) {
	r.Lock()
	defer r.Unlock()
	if r.why != nil {
		return nil, r.why
	}
	values, err := r.Rows.Values()
	return values, r.closed(err)
}

func (r *rows) RawValues() [][]byte {
	r.Lock()
	defer r.Unlock()
	if r.why != nil {
		return nil
	}
	return r.Rows.RawValues()
}

// closed returns err. Where there is one, pgx has closed the rows.
func (r *rows) closed(err error) error {
	if err != nil {
		r.end()
	}
	return err
}

// row is the first one of rows.
type row struct{ pgx.Rows }

// Scan reads the row, and closes the rows.
func (r row) Scan(dest ...any) error {
	defer r.Close()
	if !r.Next() {
		if err := r.Err(); err != nil {
			return err
		}
		return pgx.ErrNoRows
	}
	if err := r.Rows.Scan(dest...); err != nil {
		return err
	}
	r.Close()
	return r.Err()
}

// batch is a batch on a loan, which is over when it is closed.
type batch struct {
	pgx.BatchResults
	*loan
	callbacks []func(pgx.BatchResults) error // of the queries whose results were not read; nil after an error
	last      *rows
	failed    error // of a callback
}

// copied returns a copy of a batch that nobody else changes. The callbacks stay here: pgx would call them while the loan
// is locked, so that nothing could end it until they return.
func (b *batch) copied(from *pgx.Batch) *pgx.Batch {
	own := &pgx.Batch{}
	for _, q := range from.QueuedQueries {
		c := *q
		b.callbacks = append(b.callbacks, c.Fn)
		c.Fn = nil
		own.QueuedQueries = append(own.QueuedQueries, &c)
	}
	return own
}

// passed drops the callback of the query whose result was read.
func (b *batch) passed(err error) {
	if err != nil || len(b.callbacks) == 0 {
		b.callbacks = nil
		return
	}
	b.callbacks = b.callbacks[1:]
}

// exec is Exec while the loan is locked.
func (b *batch) exec() (pgconn.CommandTag, error) {
	tag, err := b.BatchResults.Exec()
	b.passed(err)
	return tag, err
}

func (b *batch) Exec() (pgconn.CommandTag, error) {
	b.Lock()
	defer b.Unlock()
	if b.why != nil {
		return pgconn.CommandTag{}, b.why
	}
	return b.exec()
}

func (b *batch) Query() (pgx.Rows, error) {
	b.Lock()
	defer b.Unlock()
	if b.why != nil {
		return &noRows{b.why}, b.why
	}
	inner, err := b.BatchResults.Query()
	b.passed(err)
	b.last = &rows{Rows: inner, loan: b.loan, part: true}
	return b.last, err
}

func (b *batch) QueryRow() pgx.Row {
	r, _ := b.Query() // the rows tell the error too
	return row{r}
}

// next returns the callback that is called next, and reads the results before it. It returns nil if none is called.
func (b *batch) next() func(pgx.BatchResults) error {
	b.Lock()
	defer b.Unlock()
	for b.why == nil && b.failed == nil && len(b.callbacks) > 0 {
		switch {
		case b.last != nil && b.last.Rows.Err() != nil:
			return nil
		case b.callbacks[0] != nil:
			return b.callbacks[0]
		}
		_, _ = b.exec() // the batch's Close tells the error
	}
	return nil
}

// Close also tells why the batch was closed before its results were read.
func (b *batch) Close() error {
	for call := b.next(); call != nil; call = b.next() {
		if err := call(b); err != nil {
			b.Lock()
			b.failed = err
			b.Unlock()
		}
	}
	b.Lock()
	defer b.Unlock()
	if b.why != nil {
		return b.why
	}
	err := b.BatchResults.Close()
	b.finish()
	if b.failed != nil {
		return b.failed
	}
	return err
}

// noRows are those of a query that was not sent.
type noRows struct{ err error }

func (*noRows) Close()                                       {}
func (r *noRows) Err() error                                 { return r.err }
func (*noRows) CommandTag() pgconn.CommandTag                { return pgconn.CommandTag{} }
func (*noRows) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (*noRows) Next() bool                                   { return false }
func (r *noRows) Scan(...any) error                          { return r.err }
func (r *noRows) Values() ([]any, error)                     { return nil, r.err }
func (*noRows) RawValues() [][]byte                          { return nil }
func (*noRows) Conn() *pgx.Conn                              { return nil }
func (*noRows) TypeMap() *pgtype.Map                         { return nil }
