package inbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"
)

// occasion says why the history of a message gets an entry.
type occasion int

const (
	unnoted  occasion = -1 // it gets none, because this was no attempt
	putAside occasion = 0
	itFailed occasion = 1
)

// failedRun is a run of a handler that failed.
type failedRun struct {
	took  time.Duration // 0: not known
	trace string
}

// newRun returns the run that began then and failed now.
func (o *observers) newRun(ctx context.Context, began time.Time) *failedRun {
	r := &failedRun{}
	if !began.IsZero() {
		r.took = time.Since(began)
	}
	const most = 64 // size of the column
	if id := o.traceID(ctx); len(id) <= most {
		r.trace = id
	}
	return r
}

// traceID asks the observers, of which that of package tracing knows, for the trace of a delivery. One that panics knows
// none: the failure is what counts.
func (o *observers) traceID(ctx context.Context) (id string) {
	defer func() {
		if recover() != nil {
			id = ""
		}
	}()
	for _, one := range o[KindFailed] {
		if tracer, is := one.(interface {
			TraceID(ctx context.Context) string
		}); is {
			return tracer.TraceID(ctx)
		}
	}
	return ""
}

// note adds the state of the stored message to its history. Call it after the statement that
// changes the row in tx: that one locks the row, and while it waits, it holds no lock in the
// history. r is nil unless this process ran the handler.
func (s *Store) note(ctx context.Context, tx *sqlx.Tx, consumer int32, id []byte, what occasion, r *failedRun) error {
	if what == unnoted {
		return nil
	}
	return s.noteAll(ctx, tx, consumer, [][]byte{id}, what, r)
}

// noteAll is note for several messages.
func (s *Store) noteAll(ctx context.Context, tx *sqlx.Tx, consumer int32, ids [][]byte, what occasion, r *failedRun) error {
	var process, took, trace any
	if r != nil {
		process = []byte(s.config.Process)
		if r.took > 0 {
			took = r.took.Microseconds()
		}
		if r.trace != "" {
			trace = []byte(r.trace)
		}
	}
	query, args, err := s.dialect.In(s.dialect.History.InsertHistory, what, process, took, trace, consumer, ids, consumer, ids)
	if err == nil {
		_, err = tx.ExecContext(ctx, query, args...)
	}
	if err != nil {
		return fmt.Errorf("record the history of the message: %w", err)
	}
	return nil
}
