package inbox

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/stored"
)

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
		a.id = keylessID(a.msg.UUID, payload, a.msg.Metadata)
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
	a.status, a.delay, a.orderKey = stored.FailedTerminal, stored.Never, nil
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
		err = q.write(ctx, func(ctx context.Context, tx *sqlx.Tx, tell tellParked) (err error) {
			kept, err = q.putTerminal(ctx, tx, id, a, tell)
			return err
		})
	}
	if err != nil {
		return false, q.explain(fmt.Sprintf("store message %q", a.msg.UUID), q.refused(ctx, err, a))
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
