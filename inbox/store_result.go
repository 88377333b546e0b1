package inbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/stored"
)

// Result returns what the handler of consumer stored with [SetResult] for the message with this
// key, or [ErrNotFound] if it stored nothing. If it was sealed, Result returns the error of the codec,
// or one that says that Config.Payloads is not set.
func (s *Store) Result(ctx context.Context, consumer, messageID string) (json.RawMessage, error) {
	kept, err := s.keptResult(ctx, consumer, messageID)
	if err != nil {
		return nil, fmt.Errorf("inbox: result of %q for consumer %q: %w", messageID, consumer, database.Explain(err))
	}
	result, err := s.openResult(ctx, consumer, kept)
	if err != nil {
		return nil, fmt.Errorf("inbox: result of %q for consumer %q: %w", messageID, consumer, err)
	}
	return result, nil
}

func (s *Store) keptResult(ctx context.Context, consumer, messageID string) (kept []byte, err error) {
	for _, id := range keycode.Parse(messageID) {
		var claims []stored.Claim
		err := sqlx.SelectContext(ctx, s.db.Reader(ctx), &claims, s.dialect.StoryClaims, id, []byte(s.config.Namespace))
		if err != nil {
			return nil, err
		}
		for _, c := range claims { // the newest epoch counts
			if string(c.Name) == consumer && c.Body != nil {
				kept = c.Body
			}
		}
	}
	if kept == nil {
		return nil, ErrNotFound
	}
	return kept, nil
}

// sealResult returns the stored form of what the handler of msg set as its result: JSON, or with a codec an
// outcome of one message. JSON never begins with sealedOutcome.
func (s *Store) sealResult(ctx context.Context, consumer string, msg *message.Message, body []byte) ([]byte, error) {
	if s.config.Payloads == nil {
		return body, nil
	}
	m := message.NewMessage(msg.UUID, body)
	m.Metadata = msg.Metadata // the codec may read it
	kept, err := s.encodeOutcome(ctx, consumer, "", []*message.Message{m})
	if errors.Is(err, ErrErased) { // as if it had been erased later
		m.Payload = nil
		return s.encodeOutcome(ctx, consumer, "", []*message.Message{m})
	}
	return kept, err
}

// openResult reverses sealResult. Without a codec, kept may be sealed all the same.
func (s *Store) openResult(ctx context.Context, consumer string, kept []byte) (json.RawMessage, error) {
	if len(kept) == 0 || kept[0] != sealedOutcome {
		return kept, nil
	}
	msgs, problems, err := s.decodeOutcome(ctx, consumer, "", kept)
	switch {
	case err != nil:
		return nil, err
	case len(msgs) != 1:
		return nil, fmt.Errorf("there are %d results", len(msgs))
	case problems[0] != nil:
		return nil, problems[0]
	case msgs[0].Payload == nil:
		return nil, ErrErased
	}
	return json.RawMessage(msgs[0].Payload), nil
}
