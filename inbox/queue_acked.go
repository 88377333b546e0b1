package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/recent"
	"github.com/millrace-go/millrace/internal/stored"
)

// An ack means that the message was handled, unless the inbox knows better: its run failed and somebody outside of
// the inbox took the failure over, or the inbox met it without its context and did not handle it.

// Finish closes the message after it was acked. It does nothing if the inbox closed it in the
// handler's transaction. If the message failed, whoever acked it has taken the failure over: then
// Finish also deletes its open claim, so that the message is handled when it is sent again; if it came
// again meanwhile, Finish does as [Leased.Fail]. A message that came to the inbox without its context,
// and was not handled, has failed.
func (l *Leased) Finish(ctx context.Context) error {
	over, counts, cause := l.result()
	settling := l.row.Status == stored.Settling
	switch {
	case over:
		return nil
	case cause != nil && settling: // nobody has published what the handler produced
		return l.fail(ctx, counts, cause)
	case cause != nil:
		err := l.forget(ctx, cause)
		if errors.Is(err, errCopied) {
			return l.fail(ctx, counts, cause)
		}
		return l.queue.explain(fmt.Sprintf("forget message %d", l.row.ID), err)
	case l.strayed() && !settling:
		l.queue.store.tallies.of(l.queue.name).saidStray.Do(func() {
			l.queue.store.log.Error("inbox: a stored message was acked, but came to the inbox without its context, so it is tried again; "+
				"said once per consumer", errStray, l.event(fate{}).fields())
		})
		return l.fail(ctx, true, errStray) // an attempt, so that it does not go on for ever and somebody is told
	}
	return l.queue.explain(fmt.Sprintf("close message %d", l.row.ID), l.close(ctx))
}

// handled reports whether an ack of l says that it was handled, and nothing is left to be done but to close it.
func (l *Leased) handled() bool {
	over, _, cause := l.result()
	return !over && cause == nil && l.row.Status != stored.Settling && !l.strayed()
}

// errCopied says that the row of a message stands for a copy of it as well.
var errCopied = errors.New("a copy came while the message was handled")

// forget deletes a message whose failure somebody took over, and all that is known of it, as if it had never been
// stored. A claim that is completed by now stays. If a copy came meanwhile, forget returns errCopied: it may be what
// somebody sent again, and was acked because the message was stored.
func (l *Leased) forget(ctx context.Context, cause error) error {
	s, id := l.queue.store, l.row.MessageID
	err := s.db.Write(ctx, func(tx *sqlx.Tx) error {
		if _, err := tx.ExecContext(ctx, s.dialect.Queue.DropOpenClaim, l.row.Consumer, id); err != nil {
			return fmt.Errorf("drop the claim: %w", err)
		}
		closed, err := database.Affected(tx.ExecContext(ctx, s.dialect.Queue.DropLeased, l.row.Consumer, id, l.token))
		if err == nil && closed != 1 {
			err = errCopied // or the lease is lost
		}
		if err != nil {
			return err
		}
		var claim struct {
			Result int16 `db:"result"`
			Token  int64 `db:"token"`
		}
		if err := tx.GetContext(ctx, &claim, s.dialect.SelectClaim, l.row.Consumer, id); !errors.Is(err, sql.ErrNoRows) {
			return err // with a claim the history stays
		}
		query, args, err := s.dialect.In(s.dialect.History.DeleteHistory, l.row.Consumer, [][]byte{id})
		if err == nil {
			_, err = tx.ExecContext(ctx, query, args...)
		}
		return err
	})
	if err == nil {
		s.tallies.of(l.queue.name).saidForgotten.Do(func() {
			e := l.event(fate{})
			e.Err = cause
			s.log.Info("inbox: a stored message failed and was acked all the same, so its failure was taken over, and nothing is kept of it; "+
				"said once per consumer", e.fields())
		})
	}
	return err
}

var errStray = errors.New("the message came to middleware.Inbox without the context in which pubsub.Durable delivered it, so " +
	"the inbox took it for a copy: in what stands between them, use CopyWithContext instead of Copy, and derive contexts from msg.Context()")

// strays remembers the keys of deliveries that no queue is known to make, and that the inbox did not handle. Each
// may be a copy from the broker, or what a queue delivered, which lost its context on the way. The queue can tell:
// what it delivered meanwhile was acked, and never seen by the inbox.
type strays struct {
	count atomic.Int64
	keys  *recent.Set // with the count at each
}

// Bounds of the strays. An entry is needed until the answer to its delivery is recorded.
const (
	mostStrays = 20_000
	strayFor   = time.Hour
)

// stray notes that d, which no queue is known to deliver, is not handled.
func (d *delivery) stray() {
	s, name := d.consumer.store, d.consumer.queueName()
	if d.id == nil || d.queueAttempt() != nil || s.bellOf(name) == nil {
		return
	}
	s.strays.keys.Add(name.Prefix()+string(d.id), s.strays.count.Add(1))
}

// strayed reports whether l never came to the inbox, which met, since l was leased, a delivery with its key that no
// queue is known to make, and did not handle it.
func (l *Leased) strayed() bool {
	if l.reached() {
		return false
	}
	at, known := l.queue.store.strays.keys.Get(l.queue.name.Prefix() + string(l.row.MessageID))
	return known && at > l.strays
}
