package inbox

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/stored"
)

// replaceIn gives row the payload of msg, if the row has not changed since it was read.
func (s *Store) replaceIn(
	ctx context.Context, tx *sqlx.Tx, by stored.Operator, row *stored.Message, msg *message.Message, hash int64,
) error {
	if row.Form != stored.Plain && s.config.Payloads == nil {
		return errors.New("its payload is encrypted, and would be stored as it is: replace it where Config.Payloads is set")
	}
	sealed, err := s.sealPayloadIn(ctx, tx, string(row.Name), string(row.Topic), msg)
	if err != nil {
		return err
	}
	// The claim first: every transaction locks claims before rows.
	opened, err := database.Affected(tx.ExecContext(ctx, s.dialect.Remedy.ReplaceHash, hash, row.Consumer, row.MessageID))
	if err != nil {
		return fmt.Errorf("the claim: %w", err)
	}
	replaced, err := database.Affected(tx.ExecContext(ctx, s.dialect.Remedy.ReplacePayload,
		sealed.inRow, sealed.form, sealed.ref, hash, row.Consumer, row.MessageID, row.Status, row.Hash))
	if err == nil {
		err = s.checkIn(ctx, tx, sealed)
	}
	if err != nil {
		return fmt.Errorf("store a payload of %d bytes: %w", len(msg.Payload), err)
	}
	if opened == 0 && replaced == 1 { // with CollisionFail
		return fmt.Errorf("its key belongs to a message that was handled: discard it: %w", ErrWrongState)
	}
	if opened != 1 || replaced != 1 {
		return s.rows.Conflict(ctx, tx, row, (*stored.Message).Remediable)
	}
	return s.rows.Audit(ctx, tx, by, "replace payload", row, fmt.Sprintf("; payload hash %016x is now %016x",
		uint64(row.Hash), uint64(hash))) //nolint:gosec // the bits matter, not the sign
}

// hash returns the hash that the consumer of row would store with msg.
func (s *Store) hash(row *stored.Message, msg *message.Message) (int64, error) {
	s.mu.Lock()
	c := s.consumers[row.Of()]
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
