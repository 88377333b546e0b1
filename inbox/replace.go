package inbox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/msgcode"
)

// MaxPayload is the size of the largest payload that [Store.ReplacePayload] takes. A
// database may take less.
const MaxPayload = 64 << 20

// ReplacePayload corrects the payload of a message that is parked or failed, which
// Config.AllowPayloadChange must allow. [Store.Retry] then runs the handler with it. The
// audit table keeps the hashes of both. From then on a copy with the old payload is not
// this message any more: it has its key but another payload, a collision. Neither is one
// with the new payload where Fingerprint is set on a consumer of another process.
//
// Where the key is made of the payload, and no queue serves the consumer, the corrected
// message would come back under another key: leave such a message, and publish by hand.
func (s *Store) ReplacePayload(ctx context.Context, id int64, payload []byte, by Operator) error {
	switch {
	case !s.config.AllowPayloadChange:
		return errors.New("inbox: replace payload: not allowed: set Config.AllowPayloadChange where operators may do so")
	case payload == nil:
		return errors.New("inbox: replace payload: the payload is nil: give an empty one if that is meant")
	case len(payload) > MaxPayload:
		return fmt.Errorf("inbox: replace payload: %d bytes are more than %d", len(payload), MaxPayload)
	}
	if err := by.validate(); err != nil {
		return err
	}
	row, err := s.find(ctx, id)
	if err != nil {
		return err
	}
	if err := s.replace(ctx, row, payload, by); err != nil {
		return row.explain("replace the payload of", err)
	}
	s.sayDecided(by, "replace payload", row.fields())
	return nil
}

func (s *Store) replace(ctx context.Context, row messageRow, payload []byte, by Operator) error {
	if err := row.remediable(); err != nil {
		return err
	}
	if row.whole() && bytes.Equal(payload, row.Payload) {
		return errors.New("it has that payload")
	}
	msg, err := row.corrected(payload)
	if err != nil {
		return err
	}
	hash, err := s.hash(row, msg)
	if err != nil {
		return err
	}
	return s.db.Write(ctx, func(tx *sqlx.Tx) error { return s.replaceIn(ctx, tx, by, row, msg, hash) })
}

// replaceIn gives row the payload of msg, if it is still as it was seen.
func (s *Store) replaceIn(
	ctx context.Context, tx *sqlx.Tx, by Operator, row messageRow, msg *message.Message, hash int64,
) error {
	stored, err := s.sealPayloadIn(ctx, tx, string(row.Name), string(row.Topic), msg)
	if err != nil {
		return err
	}
	// The claim first, as everyone does who has both.
	opened, err := database.Affected(tx.ExecContext(ctx, s.dialect.Remedy.ReplaceHash, hash, row.Consumer, row.MessageID))
	if err != nil {
		return fmt.Errorf("the claim: %w", err)
	}
	replaced, err := database.Affected(tx.ExecContext(ctx, s.dialect.Remedy.ReplacePayload,
		stored.inRow, stored.form, stored.ref, hash, row.Consumer, row.MessageID, row.Status, row.Hash))
	if err == nil {
		err = s.checkIn(ctx, tx, stored)
	}
	if err != nil {
		return fmt.Errorf("store a payload of %d bytes: %w", len(msg.Payload), err)
	}
	if opened != 1 || replaced != 1 {
		return fmt.Errorf("it was changed meanwhile: %w", ErrNotFound)
	}
	return s.audit(ctx, tx, by, "replace payload", row, fmt.Sprintf("; payload hash %016x is now %016x",
		uint64(row.Hash), uint64(hash))) //nolint:gosec // the bits matter, not the sign
}

// corrected returns the message of r with another payload.
func (r *messageRow) corrected(payload []byte) (*message.Message, error) {
	metadata, err := msgcode.DecodeMetadata(r.Metadata)
	if err != nil {
		return nil, err
	}
	msg := message.NewMessage(string(r.UUID), payload)
	msg.Metadata = metadata
	return msg, nil
}

// hash is what the consumer of row would store with msg.
func (s *Store) hash(row messageRow, msg *message.Message) (int64, error) {
	s.mu.Lock()
	c := s.consumers[row.consumer()]
	s.mu.Unlock()
	payload := []byte(msg.Payload)
	if c != nil && c.config.Fingerprint != nil && !keycode.IsKeyless(row.MessageID) {
		var err error
		if payload, err = callFingerprint(c.config.Fingerprint, msg); err != nil {
			return 0, err
		}
	}
	sum := sha256.Sum256(payload)
	return int64(binary.BigEndian.Uint64(sum[:8])), nil //nolint:gosec // the bits matter, not the sign
}
