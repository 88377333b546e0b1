package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/stored"
)

// Pace limits how fast an operator's call works through many messages.
type Pace struct {
	// PerSecond is the greatest number of messages per second. Defaults to 1000.
	PerSecond int

	// Progress is called after each batch, and after each message sent back, with the number of messages
	// done. If it panics, the panic passes on: what is done is committed, and another call does the rest.
	// Defaults to none.
	Progress func(done int)

	// Mark, unless it is nil, is the ID of a row. The call skips the rows up to it and moves it to
	// the last row that it took, so that another call with it continues there and takes no message
	// twice. Defaults to nil: the call begins with the first row.
	Mark *int64

	// Audit, unless it is nil, is the action's number in the audit table, 0 to begin. The call sets it, so
	// that another call with it, the same filter and the same operator adds to the same entries. Defaults
	// to nil: each call has entries of its own.
	Audit *int64
}

// RetryAll does for each message that f matches what [Admin.Retry] does for one. If f has no
// Status, it takes messages that wait for an operator: PARKED and FAILED_TERMINAL. If f has no
// ReceivedUntil, it takes messages that were stored before the call. It takes each message once, so
// it ends even if some fail again. It works in batches and skips messages that somebody else
// changed meanwhile, and those that it cannot read or send back (without to, those that no queue serves):
// the error at its end, also at the end of ctx, says why of one. A message that to refuses waits for an
// operator again; at the second in a row RetryAll ends. It returns the number of messages that will be
// handled now, also with an error or at the end of ctx: another call does the rest. The audit has one
// entry of it for each consumer, see [Admin.AuditMessages].
func (a *Admin) RetryAll(ctx context.Context, f Filter, by Operator, to message.Publisher, pace Pace) (retried int, err error) {
	bulk, refused := pace.bulk(by, stored.Retry, f.String()), false
	retried, err = a.forAll(ctx, f, by, pace, Status.Retryable, func(rows []stored.Message) (int, int, error) {
		return a.retrySome(ctx, rows, bulk, to, &refused)
	})
	a.sayAll(by, stored.Retry, f, retried)
	if err != nil {
		return retried, fmt.Errorf("inbox: retry messages, %d done: %w", retried, database.Explain(err))
	}
	return retried, nil
}

// DiscardAll does for each message that f matches what [Admin.Discard] does for one. It works like
// [Admin.RetryAll].
func (a *Admin) DiscardAll(ctx context.Context, f Filter, by Operator, pace Pace) (discarded int, err error) {
	bulk := pace.bulk(by, discardAction, f.String())
	discarded, err = a.forAll(ctx, f, by, pace, Status.Retryable, func(rows []stored.Message) (int, int, error) {
		through, gone, err := a.inBatch(ctx, rows, bulk, func(ctx context.Context, tx *sqlx.Tx, rows []stored.Message) error {
			for _, row := range rows {
				if err := a.discard(ctx, tx, row); err != nil {
					return err
				}
			}
			return nil
		})
		if len(gone) > 0 {
			saying, cancel := begun(ctx)
			defer cancel()
			a.sayHeldBehind(saying, gone...)
		}
		return through, len(gone), err
	})
	a.sayAll(by, discardAction, f, discarded)
	if err != nil {
		return discarded, fmt.Errorf("inbox: discard messages, %d done: %w", discarded, database.Explain(err))
	}
	return discarded, nil
}

// bulk returns what the audit table has of an action.
func (p Pace) bulk(by Operator, action, which string) stored.Bulk {
	if p.Audit == nil {
		p.Audit = new(int64)
	}
	return stored.Bulk{ID: stored.BulkID(p.Audit), By: by, Action: action, Which: which}
}

func (a *Admin) sayAll(by Operator, action string, f Filter, done int) {
	fields := watermill.LogFields{"count": done}
	if f.Consumer != "" {
		fields["consumer"] = f.Consumer
	}
	if done > 0 {
		a.inbox.Decided(by, action, fields)
	}
}

// forAll passes the messages that f matches to work, in batches and no faster than pace allows. Work says how
// many of them it is through with, and how many of these it did.
func (a *Admin) forAll(
	ctx context.Context, f Filter, by Operator, pace Pace, allowed func(Status) bool, work func([]stored.Message) (through, did int, err error),
) (done int, err error) {
	if err := by.Validate(); err != nil {
		return 0, err
	}
	if f.Status != 0 && !allowed(f.Status) {
		return 0, fmt.Errorf("%s messages do not allow that: %w", f.Status, inbox.ErrWrongState)
	}
	if err := a.mayDoMany(ctx, &pace); err != nil {
		return 0, err
	}
	if f.ReceivedUntil.IsZero() {
		now, err := a.rows.Now(ctx)
		if err != nil {
			return 0, err
		}
		f.ReceivedUntil = now.Add(time.Millisecond) // the resolution of SQLite's clock
	}
	const most = 100
	batch, began, looked := min(most, pace.PerSecond), time.Now(), 0
	if pace.Mark == nil {
		pace.Mark = new(int64)
	}
	var unread error
	defer func() {
		if unread != nil { // also at the end of ctx: a call that continues behind Mark does not see it
			err = errors.Join(err, &stored.LeftError{Cause: unread})
		}
	}()
	for {
		ids, err := a.list(ctx, f, *pace.Mark, batch, FailedTerminal, Parked)
		if err != nil || len(ids) == 0 {
			return done, err
		}
		rows, broken, err := a.listed(ctx, a.rows.Dialect.Remedy.SelectListed, ids)
		if err != nil {
			return done, err
		}
		for _, why := range broken {
			unread = cmp.Or(unread, why)
		}
		rows = slices.DeleteFunc(rows, func(r stored.Message) bool { // changed since the IDs were read
			return !slices.Contains(f.statuses(FailedTerminal, Parked), r.Status)
		})
		for {
			through, did, err := work(rows)
			done += did
			var left *unsendableError
			if errors.As(err, &left) {
				unread, err = cmp.Or(unread, err), nil
			}
			switch {
			case err == nil && through == len(rows):
				*pace.Mark = ids[len(ids)-1]
			case through > 0:
				*pace.Mark = rows[through-1].ID
			}
			if pace.Progress != nil {
				pace.Progress(done)
			}
			if err != nil {
				return done, err
			}
			if rows = rows[through:]; len(rows) == 0 {
				break
			}
			if err := ctx.Err(); err != nil {
				return done, err
			}
		}
		looked += len(ids)
		if len(ids) < batch {
			return done, nil
		}
		if err := pace.wait(ctx, began, looked); err != nil { // those that nothing was done to were read as well
			return done, err
		}
	}
}

// mayDoMany refuses an action on many messages in a handler's transaction, and sets the defaults of pace.
func (a *Admin) mayDoMany(ctx context.Context, pace *Pace) error {
	if pace.PerSecond < 0 {
		return fmt.Errorf("PerSecond %d is negative", pace.PerSecond)
	}
	pace.PerSecond = cmp.Or(pace.PerSecond, 1000)
	if _, live := a.rows.Live(ctx); live {
		return errors.New("not in a handler's transaction: it would hold every message until its end")
	}
	return nil
}

// wait waits until pace allows this many messages.
func (p Pace) wait(ctx context.Context, began time.Time, done int) error {
	earliest := began.Add(time.Duration(float64(done) / float64(p.PerSecond) * float64(time.Second)))
	timer := time.NewTimer(time.Until(earliest))
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// retrySome makes the first messages due, all at once, as far as a queue serves them. Without a queue it sends
// back the first one by itself, so that a failure to publish concerns one message only, and so that the call can
// end behind each of them. The publisher's second refusal in a row is an error: refused says whether the last
// message was.
func (a *Admin) retrySome(
	ctx context.Context, rows []stored.Message, bulk stored.Bulk, to message.Publisher, refused *bool,
) (through, done int, err error) {
	served := make(map[stored.Name]bool)
	for _, row := range rows {
		live, known := served[row.Of()]
		if !known {
			if live, err = a.rows.Served(ctx, &row); err != nil {
				return 0, 0, err
			}
			served[row.Of()] = live
		}
		if !live {
			break
		}
		through++
	}
	if through == 0 && len(rows) > 0 {
		done, err = a.sendBackOne(ctx, rows[0], bulk, to, refused)
		if left := (*unsendableError)(nil); err != nil && !errors.As(err, &left) {
			return 0, done, err
		}
		return 1, done, err
	}
	through, changed, err := a.inBatch(ctx, rows[:through], bulk, func(ctx context.Context, tx *sqlx.Tx, rows []stored.Message) error {
		due := make([]*stored.Message, len(rows))
		for i := range rows {
			due[i] = &rows[i]
		}
		return a.rows.SetDue(ctx, tx, bulk.By, stored.Retry, due...)
	})
	for name, live := range served {
		if live {
			a.inbox.Wake(name)
		}
	}
	return through, len(changed), err
}

// sendBackOne returns an unsendableError for a message that cannot be sent back while others can, and skips one
// that somebody else changed.
func (a *Admin) sendBackOne(
	ctx context.Context, row stored.Message, bulk stored.Bulk, to message.Publisher, refused *bool,
) (done int, err error) {
	var unsendable *unsendableError
	var unsent *unsentError
	record := func(ctx context.Context, tx *sqlx.Tx) error { return a.rows.AuditBulk(ctx, tx, bulk, row) }
	switch err := a.sendBackWhole(ctx, row, bulk.By, to, record); {
	case err == nil:
		*refused = false
		return 1, nil
	case errors.As(err, &unsendable):
		return 0, explain(&row, "retry", err)
	case errors.As(err, &unsent) && !*refused:
		*refused = true
		return 0, explain(&row, "retry", &unsendableError{err})
	case stored.IsConflict(err):
		return 0, nil
	default:
		return 0, explain(&row, "retry", err)
	}
}

// batchTime limits the time of a batch, or of a single message.
const batchTime = 30 * time.Second

// begun returns a context that does not end with ctx: a batch that has begun must finish, because
// nobody would know whether its commit was cut off.
func begun(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), batchTime)
}

// sendBackWhole is sendBack, which finishes even if ctx ends. If the publisher refuses the message, it waits for an
// operator again.
func (a *Admin) sendBackWhole(
	ctx context.Context, row stored.Message, by Operator, to message.Publisher, record func(context.Context, *sqlx.Tx) error,
) error {
	sending, cancel := begun(ctx)
	defer cancel()
	err := a.sendBack(sending, row, to, func(tx *sqlx.Tx) error {
		if err := a.rows.SetDue(sending, tx, by, stored.Retry, &row); err != nil {
			return err
		}
		return record(sending, tx)
	})
	var unsent *unsentError
	if !errors.As(err, &unsent) {
		return err
	}
	undoing, cancel := begun(ctx)
	defer cancel()
	return errors.Join(err, a.rows.Write(undoing, func(tx *sqlx.Tx) error { return a.rows.UndoRetry(undoing, tx, by, &row) }))
}

// inBatch applies act to all rows in one transaction, which records them as part of bulk. If somebody
// else changed one of them, it applies act to each row by itself and skips the changed one. It says how many rows it is
// through with, and which of these it did.
func (a *Admin) inBatch(
	ctx context.Context, rows []stored.Message, bulk stored.Bulk, act func(context.Context, *sqlx.Tx, []stored.Message) error,
) (through int, done []stored.Message, err error) {
	if len(rows) == 0 {
		return 0, nil, nil
	}
	together := func(rows []stored.Message) error {
		ctx, cancel := begun(ctx)
		defer cancel()
		return a.rows.Write(ctx, func(tx *sqlx.Tx) error {
			if err := act(ctx, tx, rows); err != nil {
				return err
			}
			return a.rows.AuditBulk(ctx, tx, bulk, rows...)
		})
	}
	err = together(rows)
	if err == nil {
		return len(rows), rows, nil
	}
	if !stored.IsConflict(err) {
		return 0, nil, err
	}
	for i := range rows {
		if err := ctx.Err(); err != nil {
			return i, done, err
		}
		switch err := together(rows[i : i+1]); {
		case err == nil:
			done = append(done, rows[i])
		case !stored.IsConflict(err):
			return i, done, fmt.Errorf("message %d: %w", rows[i].ID, err)
		}
	}
	return len(rows), done, nil
}
