package inbox

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/stored"
)

// The inbox stores a message without a key whole, as FAILED_TERMINAL, under an id of its own, and
// acks it: redelivered, it would fail each time and hold back the messages behind it. When it is
// tried again, the queue looks for its key again.

// noKey returns why a message is stored without a key. It returns err if the message is not to
// blame.
func noKey(ctx context.Context, err error) (why, error) {
	if blameless(ctx, err) {
		return why{}, err
	}
	return why{ReasonNoKey, ReasonNoKey + ": " + string(noteText(err.Error()))}, nil
}

// blameless reports whether the message is not to blame for an error of a function of the service:
// if the delivery ended, or if the function asked a database that is down, busy or slow, or returned
// ErrUnavailable.
func blameless(ctx context.Context, err error) bool {
	kind := dialect.Classify(err)
	return ctx.Err() != nil || kind == dialect.Unavailable || kind == dialect.Contention ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrUnavailable)
}

// The next functions call a function of the service. A panic becomes an error.

func callFingerprint(of func(*message.Message) ([]byte, error), msg *message.Message) (print []byte, err error) {
	defer recovered("fingerprint", &err)
	if print, err = of(msg); err != nil {
		err = fmt.Errorf("fingerprint: %w", sound(err))
	}
	return print, err
}

func callOrderKey(of func(*message.Message) (string, error), msg *message.Message) (key string, err error) {
	defer recovered("order key", &err)
	if key, err = of(msg); err != nil {
		err = fmt.Errorf("order key: %w", sound(err))
	}
	return key, err
}

func callNotBefore(of func(*message.Message) time.Time, msg *message.Message) (at time.Time, err error) {
	defer recovered("NotBefore", &err)
	return of(msg), nil
}

// callClassify returns cause if Classify returns nil or panics; a panic is added to it.
func callClassify(of func(error) error, cause error) (classified error) {
	defer func() {
		if r := recover(); r != nil {
			classified = fmt.Errorf("%w (%w)", cause, &panicError{"Classify", r})
		}
	}()
	if classified = sound(of(cause)); classified == nil {
		return cause
	}
	return classified
}

type topicKey struct{}

// topicOf returns the topic that a message came from: from the router, or before the router from
// the queue.
func topicOf(ctx context.Context) string {
	if topic := message.SubscribeTopicFromCtx(ctx); topic != "" {
		return topic
	}
	topic, _ := ctx.Value(topicKey{}).(string)
	return topic
}

// valueFrom returns the key of a message that came from topic and has not reached the router.
//
//nolint:contextcheck // the message has its own
func (k Key) valueFrom(topic string, msg *message.Message) (string, error) {
	ctx := msg.Context()
	defer msg.SetContext(ctx)
	msg.SetContext(context.WithValue(ctx, topicKey{}, topic))
	return k.find(msg)
}

// withoutKey gives d an id of its own. If the message is not to blame for err, it returns err
// instead.
func (d *delivery) withoutKey(err error) error {
	if d.keyless, err = noKey(d.ctx, err); err != nil {
		return err
	}
	d.id = keycode.Keyless(d.as.Came.UUID, d.as.Came.Payload)
	d.key = keycode.String(d.id)
	return nil
}

// compare determines the hash by which d is compared with another message of its key.
func (d *delivery) compare() error {
	if d.keyless.text == "" {
		err := d.fingerprinted()
		if err == nil {
			return nil
		}
		if d.lease == nil { // else the hash in its row is used
			if err := d.withoutKey(err); err != nil {
				return err
			}
		}
	}
	d.fingerprint = sha256.Sum256(d.as.Came.Payload)
	d.hash = hashOf(d.fingerprint)
	d.otherHash = func() (int64, bool) { return 0, false }
	if d.lease != nil {
		d.hash = d.lease.row.Hash
	}
	return nil
}

// keepKeyless stores a message without a key through the queue that delivers it past its table, if
// there is one, because the queue calls OnPark.
func (cl *claim) keepKeyless() (kept bool, err error) {
	a := attemptOf(cl.ctx)
	if cl.keyless.text == "" || a == nil || a.keep == nil {
		return false, nil
	}
	because := cl.keyless
	if keycode.IsKeyless(cl.id) { // a queue that finds no key either gives its own reason
		because.text = ReasonNoKey + ": middleware.Inbox finds none, and pubsub.Durable does: give both the same Key and Fingerprint; " +
			"then try the message again (" + strings.TrimPrefix(because.text, ReasonNoKey+": ") + ")"
	}
	fresh, err := cl.keepBy(a.keep, because)
	if err != nil {
		return false, err
	}
	if !fresh {
		cl.answer = "stored as " + stored.FailedTerminal.String()
		cl.duplicate()
	}
	return true, nil
}

// keepBy calls keep, unless the database is known to be down.
func (cl *claim) keepBy(keep func(context.Context, why) (bool, error), because why) (kept bool, err error) {
	s, d := cl.consumer.store, cl.delivery
	pass, up := s.outage.Enter(d.ctx)
	if !up {
		d.observe(KindOutage, databaseDown, ErrUnavailable)
		return false, ErrUnavailable
	}
	returned := false
	defer func() {
		if !returned {
			pass.Cancel()
		}
	}()
	ctx, cancel := context.WithTimeout(d.ctx, cl.consumer.config.TwinWait) // another transaction may hold the queue's key
	defer cancel()
	kept, err = keep(ctx, because)
	returned = true
	if err != nil && ctx.Err() != nil && d.ctx.Err() == nil {
		pass.Cancel()
		return false, fmt.Errorf("%w: keep the message for an operator: %w", ErrInProgress, err)
	}
	switch {
	case saysOf(err).Down():
		d.observe(KindOutage, databaseDown, err)
		if pass.Down(d.ctx) {
			d.log().Error("inbox: the database does not serve the inbox, deliveries are held back", database.Explain(err), nil)
		}
	default:
		if err == nil {
			s.answers(pass)
		} else {
			pass.Cancel()
		}
	}
	return kept, err
}

// asideStatus returns the status in which d waits for an operator if its handler did not run.
func (d *delivery) asideStatus() stored.Status {
	if d.keyless.text != "" {
		return stored.FailedTerminal
	}
	return stored.Parked
}

// identify determines the key, the hash, the order key and the delay of a. If one of the functions
// of the service fails, it makes a FAILED_TERMINAL.
//
//nolint:contextcheck // the message has its own
func (q *Queue) identify(a *arrival) error {
	key, err := q.config.Key.valueFrom(a.topic, a.msg)
	payload := []byte(a.msg.Payload)
	if err == nil && q.config.Fingerprint != nil {
		payload, err = callFingerprint(q.config.Fingerprint, a.msg)
	}
	if err != nil {
		payload, a.keyless = a.msg.Payload, true
		a.id = keycode.Keyless(a.msg.UUID, payload)
		a.key = keycode.String(a.id)
	} else {
		a.key, a.id = key, keycode.Encode(key)
	}
	a.print = sha256.Sum256(payload)
	a.hash = int64(binary.BigEndian.Uint64(a.print[:8])) //nolint:gosec // the bits matter, not the sign
	if err == nil && q.config.OrderKey != nil {
		var order string
		if order, err = callOrderKey(q.config.OrderKey, a.msg); err == nil && order != "" {
			a.orderKey = keycode.Encode(order)
		}
	}
	if err == nil && q.config.NotBefore != nil {
		var at time.Time
		at, err = callNotBefore(q.config.NotBefore, a.msg)
		a.delay = max(0, time.Until(at))
	}
	if err == nil {
		return nil
	}
	a.status, a.delay = stored.FailedTerminal, stored.Never
	a.why, err = noKey(a.msg.Context(), q.store.counted(err))
	return err
}

// keep stores a message that is FAILED_TERMINAL as it arrives, and reports whether it was not
// stored before.
func (q *Queue) keep(ctx context.Context, a *arrival) (fresh bool, err error) {
	id, err := q.register(ctx)
	if err == nil {
		err = q.seal(ctx, a)
	}
	var kept *arrival
	if err == nil {
		err = q.write(ctx, func(tx *sqlx.Tx, tell tellParked) (err error) {
			kept, err = q.putTerminal(ctx, tx, id, a, tell)
			return err
		})
	}
	if err != nil {
		return false, q.explain(fmt.Sprintf("store message %q", a.msg.UUID), q.store.db.Noticed(err))
	}
	if kept != nil {
		q.observeKept(ctx, kept)
	}
	return kept != nil, nil
}

func (q *Queue) observeKept(ctx context.Context, a *arrival) {
	if a.original != nil {
		q.observeCollision(ctx, a)
		return
	}
	q.observeFate(ctx, q.event(a, a.reason), fate{a.status, a.attempts, a.delay, a.why, a.last})
}

// putTerminal stores a for an operator, with an open claim, unless it was stored or handled before.
// It returns what it stored for the operator: a collision, if the key belongs to another message.
func (q *Queue) putTerminal(
	ctx context.Context, tx *sqlx.Tx, consumer int32, a *arrival, tell tellParked,
) (kept *arrival, err error) {
	d := q.store.dialect
	if _, err := tx.ExecContext(ctx, d.OpenClaim, consumer, a.id, a.hash, 1); err != nil {
		return nil, err
	}
	var row lookup
	if err := row.scan(tx.QueryRowContext(ctx, d.Lookup, consumer, a.id)); err != nil {
		return nil, err
	}
	switch {
	case !a.keyless && row.other(a.hash):
		kept, err = q.parkTwin(ctx, tx, consumer, a)
	case row.Result != stored.ResultOpen && row.Outcome != nil && !row.OpenStatus.Valid: // its outcome must still be published
		settling := *a // a copy, because the transaction may run again
		settling.status, settling.delay, settling.why = stored.Settling, q.config.MinBackoff, unsettled
		return nil, q.insertFailed(ctx, tx, consumer, &settling)
	case row.Result != stored.ResultOpen || row.OpenStatus.Valid:
		a.past = row.Outcome != nil && row.OpenHash.Int64 != a.hash
		return nil, nil
	default:
		kept, err = a, q.insertFailed(ctx, tx, consumer, a)
	}
	if err != nil {
		return nil, err
	}
	return kept, tell(a.msg.Copy(), kept.text)
}

// withoutKey returns the error for a message without a key, which no retry would change.
// Deduplicate has no table to store it in. If the message is not to blame for err, withoutKey
// returns err.
func (l *leaseDelivery) withoutKey(err error) error {
	if _, err := noKey(l.ctx, err); err != nil {
		return err
	}
	return &noKeyError{Terminal(err)}
}

type noKeyError struct{ error }

func (e *noKeyError) Unwrap() error { return e.error }

// notIdentified reports why the handler does not run. A message without a key goes back to its
// source after a pause, because many sources redeliver it at once.
func (l *leaseDelivery) notIdentified(err error) {
	var none *noKeyError
	if !errors.As(err, &none) {
		l.interrupted(err)
		return
	}
	l.observe(KindFailed, ReasonNoKey, err)
	if a := deliveredBy(l.ctx); a != nil {
		a.failed(l.ctx, err)
		return
	}
	l.consumer.pace.wait(l.ctx)
}
