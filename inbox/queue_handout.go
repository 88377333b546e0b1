package inbox

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/stored"
)

// HandOut marks leased messages as about to be delivered: if the process ends, each of them may be
// the cause. It renews their leases and returns those that no other process has taken over.
func (q *Queue) HandOut(ctx context.Context, leased ...*Leased) ([]*Leased, error) {
	ctx, cancel := q.soon(ctx)
	defer cancel()
	still, err := q.ofMany(ctx, leased, q.handOut)
	return still, q.explain("hand out messages", err)
}

func (q *Queue) handOut(ctx context.Context, leased []*Leased) error {
	var unmarked []*Leased // a suspect is marked already, and a handled message needs no mark
	for _, l := range leased {
		if !l.suspect && !l.out && l.row.Status != stored.Settling {
			unmarked = append(unmarked, l)
		}
	}
	if len(unmarked) == 0 {
		return nil
	}
	statement := q.store.dialect.Queue.HandOut
	return q.store.db.Write(ctx, func(tx *sqlx.Tx) error {
		return q.execOnAll(ctx, tx, unmarked, statement, q.config.Lease.Microseconds())
	})
}

// Finish closes messages that were acked, as [Leased.Finish] does, several at a time.
func (q *Queue) Finish(ctx context.Context, leased ...*Leased) error {
	var rest []*Leased
	var problems []error
	for _, l := range leased {
		if l.handled() {
			rest = append(rest, l)
		} else {
			problems = append(problems, l.Finish(ctx))
		}
	}
	closed, err := q.ofMany(ctx, rest, q.complete)
	if lost := len(rest) - len(closed); err == nil && lost > 0 {
		err = fmt.Errorf("%d messages: %w", lost, ErrLost)
	}
	q.dropBlobs(ctx, leased)
	return errors.Join(append(problems, q.explain("close messages", err))...)
}

func (q *Queue) complete(ctx context.Context, leased []*Leased) error {
	statements := &q.store.dialect.Queue
	return q.store.db.Write(ctx, func(tx *sqlx.Tx) error {
		query, args, err := q.store.dialect.In(statements.CompleteLeased, leased[0].row.Consumer, ids(leased), tokens(leased))
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, query, args...); err != nil {
			return err
		}
		return q.execOnAll(ctx, tx, leased, statements.DeleteLeased)
	})
}

// execOnAll runs a statement that must change the rows of all of leased. If it does not, it returns
// ErrLost. The last arguments of the statement are consumer, ids and tokens.
func (q *Queue) execOnAll(ctx context.Context, tx *sqlx.Tx, leased []*Leased, statement string, args ...any) error {
	args = append(args, leased[0].row.Consumer, ids(leased), tokens(leased))
	return q.store.changeAll(ctx, tx, len(leased), statement, args...)
}

// mostChanged bounds how many messages a statement changes.
const mostChanged = 500

// ofMany calls do for many messages at once, and if one of them was lost, for each alone. It returns
// those that were not lost.
func (q *Queue) ofMany(
	ctx context.Context, leased []*Leased, do func(context.Context, []*Leased) error,
) (still []*Leased, err error) {
	for together := range slices.Chunk(leased, mostChanged) {
		err := do(ctx, together)
		if err == nil {
			still = append(still, together...)
			continue
		}
		if !errors.Is(err, ErrLost) {
			return still, err
		}
		if len(together) == 1 {
			continue
		}
		for _, l := range together {
			switch err := do(ctx, []*Leased{l}); {
			case err == nil:
				still = append(still, l)
			case !errors.Is(err, ErrLost):
				return still, err
			}
		}
	}
	return still, nil
}

func ids(leased []*Leased) [][]byte {
	all := make([][]byte, 0, len(leased))
	for _, l := range leased {
		all = append(all, l.row.MessageID)
	}
	return all
}

// tokens returns the lease of each message. They are random: no message has that of another one. There are as many as
// ids, since drivers and servers keep each text of a statement.
func tokens(leased []*Leased) []int64 {
	all := make([]int64, 0, len(leased))
	for _, l := range leased {
		all = append(all, l.token)
	}
	return all
}

// Extend renews the leases of messages whose handlers still run.
func (q *Queue) Extend(ctx context.Context, leased []*Leased) error {
	ctx, cancel := q.soon(ctx)
	defer cancel()
	statement := q.store.dialect.Queue.ExtendLeases
	err := q.execOnEach(ctx, leased, statement, q.config.Lease.Microseconds())
	if err == nil && len(leased) > 0 && len(q.serving) == 0 { // while all handlers are busy, no Take announces it
		err = q.serve(ctx, leased[0].row.Consumer, q.config.Lease)
	}
	return q.explain("extend leases", err)
}

// PutBack ends the leases of messages that were not delivered, whether [Queue.HandOut] succeeded or
// not, so that any process can take them at once. A suspect remains one.
func (q *Queue) PutBack(ctx context.Context, leased ...*Leased) error {
	return q.explain("put back messages", q.putBack(ctx, leased))
}

func (q *Queue) putBack(ctx context.Context, leased []*Leased) error {
	var suspects, others []*Leased
	for _, l := range leased {
		if l.suspect {
			suspects = append(suspects, l)
		} else {
			others = append(others, l)
		}
	}
	statements := &q.store.dialect.Queue
	return errors.Join(q.execOnEach(ctx, suspects, statements.Unlease, 0), q.execOnEach(ctx, others, statements.PutBack))
}

// execOnEach runs a statement on many messages at once, whatever their leases. It commits by the slice: what is done
// stays done if the time ends. It ignores rows that other processes have taken over. The last arguments of the
// statement are consumer, ids and tokens.
func (q *Queue) execOnEach(ctx context.Context, leased []*Leased, statement string, args ...any) error {
	var problems []error
	for together := range slices.Chunk(leased, mostChanged) {
		err := q.store.db.Write(ctx, func(tx *sqlx.Tx) error {
			if err := q.execOnAll(ctx, tx, together, statement, args...); !errors.Is(err, ErrLost) {
				return err
			}
			return nil
		})
		if problems = append(problems, err); ctx.Err() != nil {
			break
		}
	}
	return errors.Join(problems...)
}
