package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/original"
	"github.com/millrace-go/millrace/internal/stored"
)

// Leased is a stored message that a queue took for delivery. Answer it once, with [Leased.Finish]
// or [Leased.Fail].
type Leased struct {
	attempt

	row     stored.Message
	token   int64
	suspect bool
	out     bool   // marked as handed out when it was leased
	unsure  bool   // the answer to a move was lost, which may be committed
	opened  []byte // the payload, if the row holds it in another form
	strays  int64  // how many the Store had met when l was leased

	decoded  bool             // whether metadata was read
	metadata message.Metadata // shared, never changed
}

// newLeased returns a leased message. The row of a suspect counts its next attempt already.
func newLeased(q *Queue, row stored.Message, token int64, suspect bool) *Leased {
	l := &Leased{row: row, token: token, suspect: suspect, strays: q.store.strays.count.Load()}
	l.queue, l.leased, l.number, l.receivedAt = q, l, row.Attempts+1, time.UnixMicro(row.ReceivedAt).UTC()
	if suspect {
		l.number--
	}
	return l
}

// Suspect reports whether another process leased the message and never answered. A suspect must be
// delivered alone; its attempt is counted already.
func (l *Leased) Suspect() bool { return l.suspect }

// Message returns the message as it arrived, with a context by which the inbox recognizes it.
func (l *Leased) Message(ctx context.Context) (*message.Message, error) {
	msg := message.NewMessage(string(l.row.UUID), nil)
	as, err := l.original(msg)
	if err != nil {
		return nil, err
	}
	as.Give(msg)
	msg.SetContext(original.With(context.WithValue(ctx, attemptKey{}, &l.attempt), as))
	return msg, nil
}

// original returns the stored message, which the queue hands on as given.
func (l *Leased) original(given *message.Message) (*original.Message, error) {
	if err := l.decode(); err != nil {
		return nil, fmt.Errorf("inbox: %w", err)
	}
	return original.Queued("", string(l.row.UUID), l.payload(), l.metadata, given), nil
}

// decode reads the metadata once. It reports no error for a handled message, which needs no
// metadata.
func (l *Leased) decode() (err error) {
	if l.decoded {
		return nil
	}
	if l.metadata, err = l.row.Decoded(); err != nil && l.row.Status != stored.Settling {
		return Terminal(err)
	}
	l.decoded = true
	return nil
}

// claimed reports whether the message may have a claim already: then the inbox retakes it before it
// tries to insert one.
func (l *Leased) claimed() bool {
	return l.row.Attempts > 0 || l.row.Aggregate != nil || l.row.Status == stored.Settling || l.row.Status == stored.FailedRetryable
}

// untried reports whether nobody has handled the message, as far as its row says: it has neither a claim nor a
// failure.
func (l *Leased) untried() bool { return !l.claimed() && !l.suspect && l.row.Original == nil }

// close completes the message and deletes its outcome, which the broker has by then.
func (l *Leased) close(ctx context.Context) error {
	s := l.queue.store
	return s.db.Write(ctx, func(tx *sqlx.Tx) error {
		_, err := tx.ExecContext(ctx, s.dialect.Queue.CompleteClaim, l.row.Consumer, l.row.MessageID, l.row.Hash)
		if err != nil {
			return err
		}
		if l.row.Status == stored.Settling {
			query, args, err := s.dialect.In(s.dialect.DeleteOutcomes, l.row.Consumer, [][]byte{l.row.MessageID})
			if err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, query, args...); err != nil {
				return err
			}
		}
		closed, err := database.Affected(tx.ExecContext(ctx, s.dialect.Queue.CloseLeased, l.row.Consumer, l.row.MessageID, l.token))
		if err == nil && closed != 1 {
			err = ErrLost
		}
		return err
	})
}

// Fail puts the message back for another delivery, or parks it once it failed often enough. A
// delivery that was interrupted, because the service closes for instance, does not count as an
// attempt.
func (l *Leased) Fail(ctx context.Context) error {
	over, counts, cause := l.result()
	if over {
		return nil
	}
	return l.fail(ctx, counts, cause)
}

func (l *Leased) fail(ctx context.Context, counts bool, cause error) error {
	counts = counts || errors.Is(cause, ErrCollision) // refused by CollisionFail, and no source has it any more
	charged := l.row.Attempts
	if l.suspect { // its attempt was counted in advance
		charged--
	}
	what := unnoted
	if counts {
		what = itFailed
	}
	f := l.queue.fateOf(charged, counts, cause, l.last())
	if l.row.Status == stored.Settling { // the handler has succeeded, and the outcome must still be published
		f.status, f.why = stored.Settling, unsettled
		f.delay = backoff(l.queue.config.MinBackoff, l.queue.config.MaxBackoff, f.attempts)
	}
	return l.queue.explain(fmt.Sprintf("put back message %d", l.row.ID), l.move(ctx, f, what))
}

// last returns the error of the message's last failure.
func (l *Leased) last() lastError { return lastError{l.row.LastError, l.row.ErrorCode} }

// hold extends the lease in tx, which keeps others from taking l until it ends.
func (l *Leased) hold(ctx context.Context, tx *sqlx.Tx) error {
	s := l.queue.store
	return s.changeAll(ctx, tx, 1, s.dialect.Queue.HoldLeased, l.queue.config.Lease.Microseconds(), l.row.Consumer, l.row.MessageID, l.token)
}

// PutBack puts back a message that was not handed to its handler. It does not count as an attempt. A
// suspect remains one, and is due after the time of a lease: until then others are taken.
func (l *Leased) PutBack(ctx context.Context) error {
	if l.suspect {
		q := l.queue
		err := q.execOnEach(ctx, []*Leased{l}, q.store.dialect.Queue.Unlease, q.config.Lease.Microseconds())
		return q.explain(fmt.Sprintf("put back message %d", l.row.ID), err)
	}
	l.interrupted(context.Canceled)
	return l.Fail(ctx)
}

// move ends the lease and gives the row of l its fate.
func (l *Leased) move(ctx context.Context, f fate, what occasion) error {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	s := l.queue.store
	became := f
	err := l.queue.write(ctx, func(ctx context.Context, tx *sqlx.Tx, tell tellParked) (err error) {
		if became, err = l.openClaim(ctx, tx, f); err != nil {
			return err
		}
		var moved int64
		if became.status == 0 {
			moved, err = database.Affected(tx.ExecContext(ctx, s.dialect.Queue.CloseLeased, l.row.Consumer, l.row.MessageID, l.token))
		} else {
			moved, err = database.Affected(tx.ExecContext(ctx, s.dialect.Queue.MoveLeased, became.status, became.attempts, became.last.text,
				stored.Group(became.last.text), became.last.code, noteText(became.text), became.delay.Microseconds(), l.row.Consumer, l.row.MessageID, l.token))
		}
		if err == nil && moved != 1 {
			err = ErrLost
		}
		if err == nil && became.status != 0 {
			err = s.note(ctx, tx, l.row.Consumer, l.row.MessageID, what, l.failedRun())
		}
		if err != nil || !became.status.Stuck() {
			return err
		}
		if msg, err := l.Message(ctx); err == nil {
			return tell(msg, became.text)
		}
		return nil // the message cannot be read, so OnPark is not called
	})
	if errors.Is(err, ErrLost) && l.unsure && l.has(ctx, became) {
		err = nil
	}
	l.unsure = l.unsure || dialect.Classify(err) == dialect.Unavailable || err != nil && ctx.Err() != nil
	if err == nil {
		l.queue.observeFate(ctx, l.event(became), became)
	}
	return err
}

// has reports whether the row of l shows this fate already.
func (l *Leased) has(ctx context.Context, f fate) bool {
	s := l.queue.store
	row, err := s.rows.Message(ctx, s.db, l.row.ID)
	return err == nil && row.LeaseToken == 0 && row.Status == f.status && row.Attempts == f.attempts && string(row.Reason) == string(noteText(f.text))
}

// openClaim opens the claim of a message that stays in the table, so that no copy can claim its
// key. If a twin has completed it meanwhile, openClaim returns SETTLING if the twin's outcome must
// still be published, else status 0: the row is to be closed.
func (l *Leased) openClaim(ctx context.Context, tx *sqlx.Tx, f fate) (fate, error) {
	if f.status == stored.Settling {
		return f, nil
	}
	d := l.queue.store.dialect
	if _, err := tx.ExecContext(ctx, d.OpenClaim, l.row.Consumer, l.row.MessageID, l.row.Hash, 1); err != nil {
		return f, err
	}
	var claim lookup
	if err := claim.scan(tx.QueryRowContext(ctx, d.Lookup, l.row.Consumer, l.row.MessageID)); err != nil {
		return f, err
	}
	switch {
	case claim.Result == stored.ResultOpen || claim.Hash != l.row.Hash && claim.Result != stored.ResultImported:
		return f, nil
	case claim.Outcome != nil:
		return fate{stored.Settling, f.attempts, l.queue.config.MinBackoff, unsettled, f.last}, nil
	}
	return fate{}, nil
}

// unpublished is the reason of a message that is SETTLING.
const unpublished = "what the handler produced is not known to be published"

var unsettled = why{ReasonOutcome, unpublished}
