package inbox

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/stored"
)

// Take leases at most limit messages that are due. If one of them may have ended the process that
// had it, Take leases only that one, to be delivered alone. If no message is due, Take returns none
// and the time until the next look is worthwhile, at most horizon.
func (q *Queue) Take(ctx context.Context, limit int, horizon time.Duration) ([]*Leased, time.Duration, error) {
	return q.TakeOut(ctx, 0, limit, horizon)
}

// TakeOut is [Queue.Take] for callers that hand out the first out messages at once. It marks them
// as handed out along with their lease, where that is possible, which saves [Queue.HandOut] a
// write.
func (q *Queue) TakeOut(ctx context.Context, out, limit int, horizon time.Duration) ([]*Leased, time.Duration, error) {
	within, cancel := q.patient(ctx)
	defer cancel()
	row, err := q.answer(within, horizon)
	if err == nil {
		err = q.serve(within, row.ID, horizon)
	}
	if errors.Is(err, ErrNotFound) || err == nil && row.Paused {
		return nil, horizon, nil // nothing was stored yet, or the consumer is paused
	}
	if err != nil {
		return nil, horizon, q.explain("find the consumer", err)
	}
	switch left, err := q.adopt(ctx, row.ID); {
	case err != nil:
		return nil, horizon, q.explain("look into older epochs", err)
	case left && q.config.OrderKey != nil, within.Err() != nil: // the caller may have leases to renew first
		return nil, min(horizon, lookAgain), nil
	}
	began := time.Now()
	taken, next, err := q.look(within, row.ID, out, limit, horizon)
	if ctx.Err() == nil {
		q.looked(time.Since(began), within.Err() == nil)
	}
	if len(taken) == 0 {
		return nil, next, q.explain("look for messages that are due", err)
	}
	leased := taken
	if err == nil {
		q.observeReclaimed(ctx, taken)
		leased, err = q.closeCompleted(ctx, taken)
	}
	closed := len(taken) > len(leased)
	if err == nil {
		leased, err = q.parkKillers(ctx, q.openPayloads(ctx, leased))
	}
	if err == nil {
		leased, err = q.nameKeyless(ctx, leased)
	}
	if err != nil {
		q.unlease(ctx, taken)
		return nil, horizon, q.explain("lease messages", err)
	}
	switch {
	case len(leased) > 0:
		q.vain.Store(0)
		return leased, horizon, nil
	case closed: // others may be due behind them
		q.vain.Store(0)
		return nil, 0, nil
	}
	return nil, q.inVain(next), nil
}

// look leases messages that are due. If there are none, it returns the time until there may be some. With an error it returns
// the messages that it may have leased.
func (q *Queue) look(ctx context.Context, id int32, out, limit int, horizon time.Duration) ([]*Leased, time.Duration, error) {
	lock, next, err := q.find(ctx, id, limit, horizon)
	if err != nil {
		return nil, horizon, err
	}
	if lock == nil {
		return nil, next, nil
	}
	leased, err := q.lease(ctx, id, out, lock)
	switch {
	case err != nil:
		return leased, horizon, err
	case len(leased) == 0:
		next = q.inVain(next)
	}
	return leased, next, nil
}

// find looks for messages that are due. It returns how to lock them in a transaction, nil if there
// are none, and the time until there may be some.
func (q *Queue) find(ctx context.Context, consumer int32, limit int, horizon time.Duration) (lockDue, time.Duration, error) {
	statements := &q.store.dialect.Queue
	inLine := q.config.OrderKey != nil
	if !inLine { // stored messages may still stand in line from when the queue had an OrderKey
		var next int64
		most := horizon.Microseconds()
		row := q.store.db.QueryRowContext(ctx, statements.SelectNextDue, consumer, most, consumer, most)
		switch err := row.Scan(&next, &inLine); {
		case errors.Is(err, sql.ErrNoRows):
			return nil, horizon, nil
		case err != nil || next > 0:
			return nil, time.Duration(next) * time.Microsecond, q.store.db.Noticed(err)
		}
	}
	if !inLine {
		return func(ctx context.Context, tx *sqlx.Tx) (rows []stored.Message, err error) {
			return rows, tx.SelectContext(ctx, &rows, statements.SelectDue, consumer, limit)
		}, horizon, nil
	}
	due, err := q.search(ctx, consumer, limit, horizon)
	switch {
	case err != nil:
		return nil, horizon, err
	case len(due.ids) == 0 && due.blocked:
		return nil, q.inVain(due.next), nil
	case len(due.ids) == 0:
		return nil, due.next, nil
	}
	return func(ctx context.Context, tx *sqlx.Tx) (rows []stored.Message, err error) {
		query, args, err := q.store.dialect.In(statements.LockDue, consumer, slices.Collect(maps.Keys(due.ids)), limit)
		if err == nil {
			err = tx.SelectContext(ctx, &rows, query, args...)
		}
		return rows, err
	}, due.next, nil
}

// lockDue locks and reads messages that were found due, except those that another process has taken
// since.
type lockDue func(ctx context.Context, tx *sqlx.Tx) ([]stored.Message, error)

// inVain returns the pause after a take that leased nothing although messages were due.
func (q *Queue) inVain(next time.Duration) time.Duration {
	return min(next, lookAgain<<min(q.vain.Add(1), mostVain))
}

// lookAgain is the pause while all due messages are with other processes, or wait for another one
// of their order key. It doubles with each take in vain, at most mostVain times.
const (
	lookAgain = 50 * time.Millisecond
	mostVain  = 10
)

// lease leases messages that are due, and marks the first out of them as handed out. With an error
// it returns the messages that it may have leased: the answer to a commit can be lost.
func (q *Queue) lease(ctx context.Context, id int32, out int, lock lockDue) (leased []*Leased, err error) {
	s := q.store
	token := rand.Int64N(1<<62) + 1 //nolint:gosec // tells leases apart, keeps no secret
	err = s.db.Write(ctx, func(tx *sqlx.Tx) error {
		leased = nil
		if s.dialect.OneWriter { // its transactions must begin with a write
			if _, err := tx.ExecContext(ctx, s.dialect.LockConsumer, id); err != nil {
				return err
			}
		}
		rows, err := lock(ctx, tx)
		if err != nil || len(rows) == 0 {
			return err
		}
		rows, charge := suspectAlone(rows)
		for _, row := range rows {
			row.Attempts += charge
			l := newLeased(q, row, token, charge > 0)
			l.out = len(leased) < out && !l.suspect && row.Whole()
			leased = append(leased, l)
		}
		if err := q.leaseRows(ctx, tx, leased, charge); err != nil || charge == 0 || rows[0].LeaseToken == 0 {
			return err // a suspect that was put back has this in its history
		}
		return s.note(ctx, tx, id, rows[0].MessageID, itFailed, nil)
	})
	return leased, err
}

func (q *Queue) leaseRows(ctx context.Context, tx *sqlx.Tx, leased []*Leased, charge int) error {
	statements, period := &q.store.dialect.Queue, q.config.Lease.Microseconds()
	var out, ahead []*Leased
	for _, l := range leased {
		if l.out {
			out = append(out, l)
		} else {
			ahead = append(ahead, l)
		}
	}
	for _, part := range []struct {
		leased    []*Leased
		statement string
		args      []any
	}{
		{ahead, statements.LeaseMessages, []any{charge, leased[0].token, period}},
		{out, statements.LeaseOut, []any{leased[0].token, period}},
	} {
		if len(part.leased) == 0 {
			continue
		}
		query, args, err := q.store.dialect.In(part.statement, append(part.args, leased[0].row.Consumer, ids(part.leased))...)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, query, args...); err != nil {
			return err
		}
	}
	return nil
}

// unlease undoes a lease whose messages cannot be delivered, even if ctx has ended. If unlease fails,
// the messages are redelivered after their lease.
func (q *Queue) unlease(ctx context.Context, taken []*Leased) {
	if len(taken) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), afterwards)
	defer cancel()
	if err := q.putBack(ctx, taken); err != nil {
		q.store.log.Error("inbox: messages that were leased and not delivered could not be put back; they are redelivered after their lease",
			database.Explain(err), q.fields())
	}
}

// suspectAlone returns a suspect alone if rows has one: a message that was handed out when its
// lease lapsed. It may have ended its process, so it is charged with an attempt before it is
// delivered, and no other messages are leased with it.
func suspectAlone(rows []stored.Message) (chosen []stored.Message, charge int) {
	for i, row := range rows {
		if row.Status == stored.InProgress {
			return rows[i : i+1], 1
		}
	}
	return rows, 0
}

// parkKillers parks the killers among leased, and returns the others.
func (q *Queue) parkKillers(ctx context.Context, leased []*Leased) (rest []*Leased, err error) {
	for _, l := range leased {
		if !l.killer() {
			rest = append(rest, l)
			continue
		}
		reason := fmt.Sprintf("tried %d times, and never answered: it may end the process", q.config.MaxAttempts)
		f := fate{stored.Parked, q.config.MaxAttempts, stored.Never, why{ReasonNoAnswer, reason}, l.last()}
		if err := l.move(ctx, f, putAside); err != nil {
			return nil, err
		}
	}
	return rest, nil
}

// killer reports whether l has used up its attempts, and the last one got no answer.
func (l *Leased) killer() bool { return l.suspect && l.row.Attempts > l.queue.config.MaxAttempts }

// closeCompleted closes the rows of messages whose keys are completed by now, and returns the
// others.
func (q *Queue) closeCompleted(ctx context.Context, leased []*Leased) (rest []*Leased, err error) {
	ctx, cancel := q.soon(ctx)
	defer cancel()
	s := q.store
	query, args, err := s.dialect.In(s.dialect.Queue.SelectSettled, leased[0].row.Consumer, ids(leased))
	if err != nil {
		return nil, err
	}
	var completed []claimHash
	if err := s.db.SelectContext(ctx, &completed, query, args...); err != nil {
		return nil, err
	}
	for _, l := range leased {
		if !slices.ContainsFunc(completed, l.isCopy) {
			rest = append(rest, l)
			continue
		}
		if err := l.close(ctx); err != nil && !errors.Is(err, ErrLost) {
			return nil, err
		}
		q.observeClosed(ctx, l)
	}
	return rest, nil
}

// claimHash is a completed claim with the hash of its payload.
type claimHash struct {
	ID     []byte `db:"message_id"`
	Hash   int64  `db:"payload_hash"`
	Result int16  `db:"result"`
}

// isCopy reports whether l is a copy of the claimed message, and not another message with its key.
func (l *Leased) isCopy(of claimHash) bool {
	return (of.Hash == l.row.Hash || of.Result == stored.ResultImported) && bytes.Equal(of.ID, l.row.MessageID)
}

// observeClosed reports a replayed message that was not delivered because its key was completed.
func (q *Queue) observeClosed(ctx context.Context, l *Leased) {
	e := l.event(fate{why: why{reason: replayDuplicate}})
	if _, is := e.Metadata[ReplayField]; is {
		q.Call(func() { q.store.observers.tellReplayed(ctx, q.store.log, e) })
	}
}
