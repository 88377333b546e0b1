package admin

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/stored"
)

// MaxPayload is the size of the largest payload that [Admin.ReplacePayload] accepts. A database may
// accept less.
const MaxPayload = 64 << 20

// ReplacePayload replaces the payload of a parked or failed message, if inbox.Config.AllowPayloadChange
// allows it. [Admin.Retry] then runs the handler with the new payload. The audit table keeps the
// hashes of both. From then on a copy with the old payload is a collision: it has the key but
// another payload. A copy with the new payload is a collision too if a consumer of another process
// has a Fingerprint.
//
// If the key is made of the payload, and no queue serves the consumer, the corrected message would
// come back under another key: leave such a message, and publish by hand.
//
// A payload that is stored encrypted is replaced only by a Store with inbox.Config.Payloads.
//
// ReplacePayload returns [inbox.ErrNotFound] if no such message is open, and [inbox.ErrWrongState]
// if its state does not allow a change.
func (a *Admin) ReplacePayload(ctx context.Context, id int64, payload []byte, by Operator) error {
	switch {
	case !a.inbox.MayReplace():
		return errors.New("inbox: replace payload: not allowed: set Config.AllowPayloadChange where operators may do so")
	case payload == nil:
		return errors.New("inbox: replace payload: the payload is nil: pass an empty one if you mean that")
	case len(payload) > MaxPayload:
		return fmt.Errorf("inbox: replace payload: %d bytes are more than %d", len(payload), MaxPayload)
	}
	if err := by.Validate(); err != nil {
		return err
	}
	row, err := a.find(ctx, id)
	if err != nil {
		return err
	}
	if err := a.replace(ctx, row, payload, by); err != nil {
		return explain(&row, "replace the payload of", err)
	}
	a.inbox.Decided(by, "replace payload", row.Fields())
	return nil
}

func (a *Admin) replace(ctx context.Context, row stored.Message, payload []byte, by Operator) error {
	if err := row.Remediable(); err != nil {
		return err
	}
	if row.Whole() && bytes.Equal(payload, row.Payload) {
		return errors.New("it has that payload")
	}
	msg, err := row.With(payload)
	if err != nil {
		return err
	}
	hash, err := a.inbox.Hash(&row, msg)
	if err != nil {
		return err
	}
	return a.rows.Write(ctx, func(tx *sqlx.Tx) error { return a.inbox.Replace(ctx, tx, by, &row, msg, hash) })
}
