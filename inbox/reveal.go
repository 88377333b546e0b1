package inbox

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/keycode"
)

// Reveal returns an open message whole, and keeps in the audit table who looked at it, in
// the transaction that reads it. Where the payload cannot be had, Unreadable says why. A message
// that is not open any more is [ErrNotFound].
func (s *Store) Reveal(ctx context.Context, id int64, by Operator) (Message, error) {
	if err := by.validate(); err != nil {
		return Message{}, err
	}
	seen, err := s.find(ctx, id)
	if err != nil {
		return Message{}, err
	}
	var row messageRow
	err = s.db.Write(ctx, func(tx *sqlx.Tx) (err error) {
		if err := s.audit(ctx, tx, by, "reveal", seen); err != nil {
			return err
		}
		row, err = s.findIn(ctx, tx, id)
		return err
	})
	if err != nil {
		return Message{}, seen.explain("reveal", err)
	}
	m, err := s.message(ctx, row) // a codec may take its time: not in the transaction
	return m, seen.explain("reveal", err)
}

// Message returns an open message without its payload, which [Store.Reveal] returns. One that
// is not open any more is [ErrNotFound].
func (s *Store) Message(ctx context.Context, id int64) (Message, error) {
	row, err := s.find(ctx, id)
	if err != nil {
		return Message{}, err
	}
	m, err := s.outline(ctx, row)
	return m, row.explain("outline", err)
}

// List is [Store.Find] without the payloads, which it does not read.
func (s *Store) List(ctx context.Context, f Filter, after int64, limit int) ([]Message, error) {
	messages, err := s.page(ctx, f, after, limit, s.dialect.Remedy.ListOutlines, s.outline)
	if err != nil {
		return nil, fmt.Errorf("inbox: list messages: %w", database.Explain(err))
	}
	return messages, nil
}

// Outline is [Store.Story] without the payloads, those of outcomes neither, and without what
// handlers kept with [SetResult] and what steps returned.
func (s *Store) Outline(ctx context.Context, messageID string) (Story, error) {
	return s.story(ctx, messageID, teller{s.outline, func([]byte) json.RawMessage { return nil }, outlineOutcome, stepOutline})
}

// RevealResult returns what the handler of a consumer and epoch kept with [SetResult] for the
// message with this key, and keeps in the audit table who looked at it, in the transaction
// that reads it. Where it kept nothing that is [ErrNotFound].
func (s *Store) RevealResult(ctx context.Context, consumer string, epoch int, messageID string, by Operator) (json.RawMessage, error) {
	if err := by.validate(); err != nil {
		return nil, err
	}
	var body json.RawMessage
	row, err := s.consumerRow(ctx, consumer, epoch)
	if err == nil {
		err = s.db.Write(ctx, func(tx *sqlx.Tx) (err error) {
			body, err = s.resultIn(ctx, tx, row, messageID, by)
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("inbox: reveal the result of %q for consumer %q: %w", messageID, consumer, database.Explain(err))
	}
	return body, nil
}

func (s *Store) resultIn(ctx context.Context, tx *sqlx.Tx, of consumerRow, messageID string, by Operator) (json.RawMessage, error) {
	for _, id := range keycode.Parse(messageID) {
		var claims []storyRow
		if err := sqlx.SelectContext(ctx, tx, &claims, s.dialect.StoryClaims, id, []byte(s.config.Namespace)); err != nil {
			return nil, err
		}
		for _, c := range claims {
			if string(c.Name) != string(of.Name) || c.Epoch != of.Epoch || c.Body == nil {
				continue
			}
			_, err := tx.ExecContext(ctx, s.dialect.InsertAudit,
				[]byte(by.Name), []byte("reveal"), []byte(by.Reason), of.ID, id, []byte("what its handler kept as its result"))
			return c.Body, err
		}
	}
	return nil, ErrNotFound
}

// outline returns the message in row without its payload. That it was never stored is told.
func (s *Store) outline(_ context.Context, row messageRow) (Message, error) {
	row.Payload = nil
	m := row.message()
	if row.Form == payloadErased {
		m.Unreadable = ErrErased
	}
	return m, nil
}
