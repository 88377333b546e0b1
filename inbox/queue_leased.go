package inbox

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/original"
	"github.com/millrace-go/millrace/internal/stored"
)

// Leased is an open message that was taken from the table to be delivered. It is answered
// once, with [Leased.Finish] or [Leased.Fail].
type Leased struct {
	attempt

	row     stored.Message
	token   int64
	suspect bool
	out     bool   // marked as handed out when it was leased
	opened  []byte // the payload, where the row does not have it as it came

	decoded  bool             // the metadata
	metadata message.Metadata // which nobody changes
}

// newLeased returns what row became, with the attempt of a suspect counted already.
func newLeased(q *Queue, row stored.Message, token int64, suspect bool) *Leased {
	l := &Leased{row: row, token: token, suspect: suspect}
	l.queue, l.number, l.receivedAt = q, row.Attempts+1, time.UnixMicro(row.ReceivedAt).UTC()
	if suspect {
		l.number--
	}
	return l
}

type leasedKey struct{}

func leasedOf(ctx context.Context) *Leased {
	l, _ := ctx.Value(leasedKey{}).(*Leased)
	return l
}

// Suspect reports whether the message was with a process that gave no answer. It is to be
// delivered alone; the attempt is counted already.
func (l *Leased) Suspect() bool { return l.suspect }

// Message returns the message as it came, with a context by which the inbox knows it.
func (l *Leased) Message(ctx context.Context) (*message.Message, error) {
	msg := message.NewMessage(string(l.row.UUID), nil)
	as, err := l.original(msg)
	if err != nil {
		return nil, err
	}
	as.Give(msg)
	msg.SetContext(original.With(context.WithValue(ctx, leasedKey{}, l), as))
	return msg, nil
}

// original returns what was stored, which is handed on as given.
func (l *Leased) original(given *message.Message) (*original.Message, error) {
	if err := l.decode(); err != nil {
		return nil, fmt.Errorf("inbox: %w", err)
	}
	return original.Queued("", string(l.row.UUID), l.payload(), l.metadata, given), nil
}

// decode reads the metadata, once. Of a message that was handled nobody needs it.
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

// claimed reports whether the key has had a claim: then it is taken back, not made.
func (l *Leased) claimed() bool {
	return l.row.Attempts > 0 || l.row.Aggregate != nil || l.row.Status == stored.Settling || l.row.Status == stored.FailedRetryable
}

// Finish closes the message after it was acked. Where the inbox handled it, it has done so
// in the handler's transaction.
func (l *Leased) Finish(ctx context.Context) error {
	if over, _, _ := l.result(); over {
		return nil
	}
	return l.queue.explain(fmt.Sprintf("close message %d", l.row.ID), l.close(ctx))
}

// close makes the message completed. What a handler produced is with the broker by then.
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

// Fail has the message delivered again later, or parks it when it failed often enough. A
// delivery that was interrupted, because the service closes for instance, is no attempt.
func (l *Leased) Fail(ctx context.Context) error {
	over, counts, cause := l.result()
	if over {
		return nil
	}
	charged := l.row.Attempts
	if l.suspect { // the try was counted before it was made
		charged--
	}
	what := unnoted
	if counts {
		what = itFailed
	}
	f := l.queue.fateOf(charged, counts, cause, l.last())
	if l.row.Status == stored.Settling { // the handler is done, and the outcome must go out
		f.status, f.why = stored.Settling, unsettled
		f.delay = backoff(l.queue.config.MinBackoff, l.queue.config.MaxBackoff, f.attempts)
	}
	return l.queue.explain(fmt.Sprintf("put back message %d", l.row.ID), l.move(ctx, f, what))
}

// last is the error with which the message failed before.
func (l *Leased) last() lastError { return lastError{l.row.LastError, l.row.ErrorCode} }

// PutBack has a message that was not handed over delivered again. It was no attempt.
func (l *Leased) PutBack(ctx context.Context) error {
	l.interrupted(context.Canceled)
	return l.Fail(ctx)
}

// move gives the message back with what becomes of it, and why.
func (l *Leased) move(ctx context.Context, f fate, what occasion) error {
	s := l.queue.store
	became := f
	err := l.queue.write(ctx, func(tx *sqlx.Tx, tell tellParked) (err error) {
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
			err = s.note(ctx, tx, l.row.Consumer, l.row.MessageID, what)
		}
		if err != nil || !became.status.Stuck() {
			return err
		}
		if msg, err := l.Message(ctx); err == nil {
			return tell(msg, became.text)
		}
		return nil // nobody can read it
	})
	if err == nil {
		l.queue.observeFate(ctx, l.event(became), became)
	}
	return err
}

// openClaim makes sure that no copy can claim the key of a message that stays in the table. A
// twin may have completed it meanwhile: then there is nothing left to do, status 0, or what
// the twin produced must still go out.
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

// unpublished is why a message is SETTLING.
const unpublished = "what the handler produced is not known to be published"

var unsettled = why{ReasonOutcome, unpublished}
