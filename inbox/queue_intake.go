package inbox

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/msgcode"
	"github.com/millrace-go/millrace/internal/original"
	"github.com/millrace-go/millrace/internal/stored"
)

// arrival is a message on its way into the table.
type arrival struct {
	msg      *message.Message
	topic    string
	key      string
	id       []byte
	original []byte // of a collision: the id of the key that it shares with another message
	print    [sha256.Size]byte
	hash     int64
	orderKey []byte
	payload  storedPayload
	status   stored.Status
	keyless  bool  // it has no key, only an id of its own
	disputed bool  // another payload is stored under its key, without a claim
	theirs   int64 // the hash of that payload
	joins    bool  // it is a copy of a message that is being handled, whose row must say so
	past     bool  // it was handled, its outcome may be unpublished, and it cannot be stored
	attempts int
	last     lastError
	why
	delay time.Duration
	ran   *failedRun // if its handler failed here
}

func (q *Queue) arrival(topic string, msg *message.Message) (*arrival, error) {
	a := &arrival{msg: msg, topic: topic, status: stored.Received}
	if err := q.identify(a); err != nil {
		return nil, err
	}
	return a, nil
}

// Put stores msgs, which came from topic, for q to deliver. It stores all of them, or returns an
// error and stores none; if another process stores the same messages in another order, the first of
// them may stay stored after an error. A message that is stored already is not stored twice. A
// message with the key, but not the payload, of another is parked. [Queue.PutOpen] returns those
// that cannot be stored.
func (q *Queue) Put(ctx context.Context, topic string, msgs ...*message.Message) error {
	_, err := q.PutOpen(ctx, topic, msgs...)
	return err
}

// PutOpen is [Queue.Put] for callers that can deliver past the table. It returns the messages that
// were handled and whose outcomes may be unpublished, but that cannot be stored because another
// payload waits under their key. Delivered with [Queue.Straight], their outcomes are published and
// no handler runs; otherwise [Store.Redispatch] publishes them.
func (q *Queue) PutOpen(ctx context.Context, topic string, msgs ...*message.Message) (handled []*message.Message, err error) {
	all := make([]*arrival, 0, len(msgs))
	for _, msg := range msgs {
		q.meet(msg) //nolint:contextcheck // the message has its own
		a, err := q.arrival(topic, msg)
		if err != nil {
			return nil, q.explain(fmt.Sprintf("store message %q", msg.UUID), fmt.Errorf("%w: %w", errNotIdentified, err))
		}
		all = append(all, a)
	}
	if err := q.put(ctx, all); err != nil {
		if len(all) == 1 { // after an error the messages of a batch are stored one by one
			q.observeOutage(ctx, all[0], err)
		}
		return nil, q.explain(fmt.Sprintf("store %d messages", len(msgs)), err)
	}
	q.bell.Ring()
	for _, a := range all {
		if a.past {
			handled = append(handled, a.msg)
		}
	}
	return handled, nil
}

// Unanswered reports whether Put failed because the database is away. In a queue with an OrderKey, it counts as well if
// anybody else did not answer, such as a key service: a message that is given back to its source then would come again
// behind later ones of its key.
func (q *Queue) Unanswered(err error) bool {
	if q.config.OrderKey == nil {
		return saysOf(err).Down()
	}
	return dialect.Classify(err).Down() || unanswered(err)
}

func (q *Queue) put(ctx context.Context, all []*arrival) error {
	id, err := q.register(ctx)
	if err != nil {
		return err
	}
	for _, a := range all {
		if err := q.seal(ctx, a); err != nil {
			return fmt.Errorf("message %q: %w", a.msg.UUID, err)
		}
	}
	if err := q.putAll(ctx, id, all); err != nil {
		return q.refused(ctx, err, all...)
	}
	if q.store.debug.Load() {
		q.store.log.Debug("inbox: messages stored", q.fields().Add(watermill.LogFields{"count": len(all)}))
	}
	return nil
}

// putOne stores a message unless it is stored already. If the stored message has another payload,
// putOne parks a as a collision and returns that.
func (q *Queue) putOne(ctx context.Context, tx *sqlx.Tx, consumer int32, a *arrival) (parked *arrival, err error) {
	for range maxRounds {
		if err := q.insert(ctx, tx, consumer, a); err != nil {
			return nil, err
		}
		if revived, err := q.takeUp(ctx, tx, consumer, a); revived || err != nil {
			return nil, err
		}
		kept, err := q.store.kept(ctx, tx, consumer, a.id)
		switch {
		case errors.Is(err, sql.ErrNoRows): // a message was stored, but has been completed since
			continue
		case err != nil:
			return nil, err
		case kept.Hash == a.hash:
			a.joins = kept.Status == stored.InProgress
			return nil, nil //nolint:nilnil // it is stored already
		}
		if theirs, err := q.keyOfAnother(ctx, tx, consumer, a, kept.Hash); !theirs || err != nil {
			return nil, err
		}
		return q.parkTwin(ctx, tx, consumer, a)
	}
	return nil, ErrLost
}

// seal prepares the payload of a for its row.
func (q *Queue) seal(ctx context.Context, a *arrival) error {
	seal := func() (err error) {
		defer recovered("seal the payload", &err)
		a.payload, err = q.store.sealPayload(ctx, q.name.Name, a.topic, a.msg)
		return sound(err)
	}
	return q.store.counted(seal())
}

func (q *Queue) insert(ctx context.Context, tx *sqlx.Tx, consumer int32, a *arrival) error {
	kind, version := q.describe(a.msg)
	partition, offset := q.store.position(a.msg)
	_, err := tx.ExecContext(ctx, q.store.dialect.Queue.StoreMessage,
		consumer, a.id, a.status, []byte(a.topic), partition, offset, a.orderKey, noteText(kind), noteText(version), []byte(a.msg.UUID),
		msgcode.AppendMetadata(nil, a.msg.Metadata), a.payload.inRow, a.hash, noteText(a.text), a.original,
		a.payload.form, a.payload.ref, a.delay.Microseconds())
	if err != nil {
		return fmt.Errorf("store a payload of %d bytes: %w", len(a.msg.Payload), err)
	}
	return q.store.checkIn(ctx, tx, a.payload)
}

// straight is a delivery past the table.
type straight struct {
	attempt

	topic string
	msg   *message.Message
}

// Straight returns a copy of msg, which came from topic, for the handler. The copy has an ack of its
// own. If the handler nacks it, fail stores the message, for the queue to deliver it again, and
// reports true: then the caller may ack msg. It reports false if the delivery does not count as an
// attempt, because the context of msg was cancelled, as when the service closes, or the database is down: then the
// source must keep msg.
func (q *Queue) Straight(
	topic string, msg *message.Message,
) (copied *message.Message, fail func(ctx context.Context) (kept bool, err error)) {
	s := &straight{topic: topic, msg: msg}
	s.queue, s.number, s.receivedAt, s.keep = q, 1, time.Now().UTC(), s.keepIt
	c := message.NewMessage(msg.UUID, nil)
	s.came = original.Queued(topic, msg.UUID, msg.Payload, msg.Metadata, c)
	s.came.Give(c) // copies, so that edits of c leave msg as it arrived
	c.SetContext(original.With(context.WithValue(msg.Context(), attemptKey{}, &s.attempt), s.came))
	return c, s.fail
}

// keepIt stores a message whose handler does not run, because the inbox found no key or another key
// than the queue.
func (s *straight) keepIt(ctx context.Context, because why) (kept bool, err error) {
	a, err := s.queue.arrival(s.topic, s.msg)
	if err != nil {
		return false, fmt.Errorf("%w: %w", errNotIdentified, err)
	}
	if a.status != stored.FailedTerminal {
		a.status, a.delay, a.why = stored.FailedTerminal, stored.Never, because
	}
	if kept, err = s.queue.keep(ctx, a); err == nil && a.past {
		err = errInTheWay
	}
	return kept, err
}

func (s *straight) fail(ctx context.Context) (kept bool, err error) {
	_, counts, cause := s.result()
	if !counts || errors.Is(s.msg.Context().Err(), context.Canceled) { // a deadline is that of the source
		return false, nil
	}
	q := s.queue
	a, err := q.arrival(s.topic, s.msg)
	var id int32
	if err == nil {
		id, err = q.register(ctx)
	}
	if err == nil { // announced first: an operator may retry the message as soon as it is stored
		err = q.serve(ctx, id, 0)
	}
	if err != nil {
		return false, q.explain(fmt.Sprintf("store message %q", s.msg.UUID), err)
	}
	a.ran = s.failedRun()
	f := q.fateOf(0, true, cause, lastError{})
	if a.status == stored.FailedTerminal {
		a.attempts, a.last = f.attempts, f.last
		if _, err = q.keep(ctx, a); err == nil && a.past {
			err = q.explain(fmt.Sprintf("store message %q", s.msg.UUID), errInTheWay)
		}
		return err == nil, err
	}
	a.status, a.attempts, a.last, a.why, a.delay = f.status, f.attempts, f.last, f.why, f.delay
	var parked *arrival
	var failed bool
	if err = q.seal(ctx, a); err == nil {
		err = q.write(ctx, func(ctx context.Context, tx *sqlx.Tx, tell tellParked) (err error) {
			parked, failed, err = q.putFailed(ctx, tx, id, a, tell)
			return err
		})
	}
	if err != nil {
		return false, q.explain(fmt.Sprintf("store message %q", s.msg.UUID), q.refused(ctx, err, a))
	}
	if parked != nil {
		q.observeCollision(ctx, parked)
		return true, nil
	}
	if failed {
		q.observeFate(ctx, q.event(a, a.reason), fate{a.status, a.attempts, a.delay, a.why, a.last})
	}
	q.bell.Ring()
	return true, nil
}

// putFailed stores a message whose handler failed, with an open claim, and reports whether the
// failure counts: a copy may be further. It opens the claim first, so that it waits for, or gives
// way to, a twin that holds it. If a message with another payload has taken the key since, or had it
// all along because there is no middleware.Inbox, putFailed parks a as a collision.
func (q *Queue) putFailed(
	ctx context.Context, tx *sqlx.Tx, consumer int32, a *arrival, tell tellParked,
) (parked *arrival, counts bool, err error) {
	d := q.store.dialect
	if _, err := tx.ExecContext(ctx, d.OpenClaim, consumer, a.id, a.hash, 1); err != nil {
		return nil, false, err
	}
	var row lookup
	if err := row.scan(tx.QueryRowContext(ctx, d.Lookup, consumer, a.id)); err != nil {
		return nil, false, err
	}
	if row.other(a.hash) {
		if parked, err = q.parkTwin(ctx, tx, consumer, a); err != nil {
			return nil, false, err
		}
		return parked, false, tell(a.msg.Copy(), parked.text)
	}
	counts, err = q.putCopy(ctx, tx, consumer, a, row, tell)
	return nil, counts, err
}

// putCopy stores a failed message unless row shows that a copy is completed or stored already. It
// reports whether the failure counts.
func (q *Queue) putCopy(
	ctx context.Context, tx *sqlx.Tx, consumer int32, a *arrival, row lookup, tell tellParked,
) (counts bool, err error) {
	switch {
	case row.Result != stored.ResultOpen && row.Outcome == nil:
		return false, nil // completed, by a twin for instance
	case row.Result != stored.ResultOpen: // its outcome must still be published
		a.status, a.delay, a.why = stored.Settling, q.config.MinBackoff, unsettled
		if row.OpenStatus.Valid && row.OpenHash.Int64 != a.hash {
			return false, errInTheWay
		}
		if row.OpenStatus.Valid { // of a copy, which may become due much later
			_, err := tx.ExecContext(ctx, q.store.dialect.MoveMessage,
				a.status, noteText(a.text), stored.ReasonOther, a.delay.Microseconds(), consumer, a.id, stored.Received)
			return false, err
		}
	case row.OpenStatus.Valid && stored.Status(row.OpenStatus.Int16) == stored.FailedRetryable:
		return q.failAgain(ctx, tx, consumer, a, tell)
	case row.OpenStatus.Valid: // a copy is stored already, in a state of its own
		joined, err := q.store.join(ctx, tx, consumer, a.id, stored.Status(row.OpenStatus.Int16))
		if err == nil && !joined {
			err = ErrLost
		}
		return false, err
	}
	if err := q.insertFailed(ctx, tx, consumer, a); err != nil || !a.status.Stuck() {
		return true, err
	}
	return true, tell(a.msg.Copy(), a.text)
}

// failAgain records another failure of a stored message that waits for its next attempt; once that
// has begun, its result counts instead. If there is to be no next attempt, failAgain makes the
// message wait for an operator.
func (q *Queue) failAgain(
	ctx context.Context, tx *sqlx.Tx, consumer int32, a *arrival, tell tellParked,
) (counts bool, err error) {
	d := q.store.dialect
	n, err := database.Affected(tx.ExecContext(ctx, d.TouchMessage,
		a.last.text, stored.Group(a.last.text), a.last.code, a.delay.Microseconds(), consumer, a.id, stored.FailedRetryable))
	if err != nil || n == 0 {
		return false, err
	}
	if a.status.Stuck() {
		_, err = tx.ExecContext(ctx, d.MoveMessage,
			a.status, noteText(a.text), stored.ReasonOther, a.delay.Microseconds(), consumer, a.id, stored.FailedRetryable)
	}
	if err == nil {
		err = q.store.note(ctx, tx, consumer, a.id, itFailed, a.ran)
	}
	if err != nil || !a.status.Stuck() {
		return true, err
	}
	return true, tell(a.msg.Copy(), a.text)
}

func (q *Queue) insertFailed(ctx context.Context, tx *sqlx.Tx, consumer int32, a *arrival) error {
	kind, version := q.describe(a.msg)
	partition, offset := q.store.position(a.msg)
	_, err := tx.ExecContext(ctx, q.store.dialect.InsertMessage,
		consumer, a.id, a.status, a.attempts, []byte(a.topic), partition, offset, a.orderKey, noteText(kind), noteText(version),
		[]byte(a.msg.UUID), msgcode.AppendMetadata(nil, a.msg.Metadata), a.payload.inRow, a.hash,
		a.last.text, stored.Group(a.last.text), a.last.code, noteText(a.text), stored.ReasonOther,
		nil, nil, sql.NullInt64{}, a.payload.form, a.payload.ref,
		a.delay.Microseconds())
	if err != nil {
		return err
	}
	if err := q.store.note(ctx, tx, consumer, a.id, a.occasion(), a.ran); err != nil {
		return err
	}
	return q.store.checkIn(ctx, tx, a.payload)
}

// occasion returns why the history gets an entry for a, which is stored because its handler failed
// or cannot run.
func (a *arrival) occasion() occasion {
	switch {
	case a.attempts > 0 || a.last.text != nil:
		return itFailed
	case a.status.Stuck():
		return putAside
	}
	return unnoted
}

// register returns the id of the consumer's row, which it inserts on first use.
func (q *Queue) register(ctx context.Context) (int32, error) {
	reg, err := q.row.Row(ctx)
	return reg.ID, err
}
