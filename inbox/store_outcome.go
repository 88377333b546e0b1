package inbox

import (
	"context"
	"errors"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox/payload"
	"github.com/millrace-go/millrace/internal/msgcode"
	"github.com/millrace-go/millrace/internal/stored"
)

// sealedOutcome is the first byte of a stored outcome with sealed payloads. The messages follow,
// encoded by msgcode.
const sealedOutcome = 0xa5

// encodeOutcome returns the stored form of the messages that a handler of consumer produced.
func (s *Store) encodeOutcome(
	ctx context.Context, consumer, topic string, produced []*message.Message,
) ([]byte, error) {
	if s.config.Payloads == nil {
		return msgcode.Encode(produced), nil
	}
	sealed := make([]*message.Message, 0, len(produced))
	for _, m := range produced {
		c := m.Copy()
		if m.Payload != nil { // nil stays nil
			info := payload.Info{Consumer: consumer, Topic: topic, UUID: m.UUID, Metadata: m.Metadata}
			payload, err := s.config.Payloads.Seal(ctx, info, m.Payload)
			if err != nil {
				return nil, err
			}
			c.Payload = append(message.Payload{}, payload...)
		}
		c.Metadata = m.Metadata
		sealed = append(sealed, c)
	}
	return append([]byte{sealedOutcome}, msgcode.Encode(sealed)...), nil
}

// decodeOutcome returns the messages of a stored outcome and, for each, why its payload could not
// be opened.
func (s *Store) decodeOutcome(
	ctx context.Context, consumer, topic string, kept []byte,
) (msgs []*message.Message, problems []error, err error) {
	if len(kept) == 0 || kept[0] != sealedOutcome {
		msgs, err = msgcode.Decode(kept)
		return msgs, make([]error, len(msgs)), err
	}
	if msgs, err = msgcode.Decode(kept[1:]); err != nil {
		return nil, nil, err
	}
	problems = make([]error, len(msgs))
	for i, m := range msgs {
		if m.Payload != nil {
			info := payload.Info{Consumer: consumer, Topic: topic, UUID: m.UUID, Metadata: m.Metadata}
			m.Payload, problems[i] = s.unseal(ctx, info, stored.Sealed, m.Payload)
		}
	}
	return msgs, problems, nil
}

// outlineOutcome returns the messages of a stored outcome without their payloads.
func outlineOutcome(kept []byte) (msgs []*message.Message, err error) {
	if len(kept) > 0 && kept[0] == sealedOutcome {
		kept = kept[1:]
	}
	msgs, err = msgcode.Decode(kept)
	for _, m := range msgs {
		m.Payload = nil
	}
	return msgs, err
}

// openOutcome returns the messages of a stored outcome that can be published, never nil. It leaves
// out those that were erased. What merely cannot be opened stays stored: another process may have its key.
func (s *Store) openOutcome(
	ctx context.Context, consumer, topic string, kept []byte,
) ([]*message.Message, error) {
	msgs, problems, err := s.decodeOutcome(ctx, consumer, topic, kept)
	if err != nil {
		return nil, err
	}
	readable := make([]*message.Message, 0, len(msgs))
	for i, m := range msgs {
		switch err := problems[i]; {
		case err == nil:
			readable = append(readable, m)
		case errors.Is(err, ErrErased):
			s.log.Error("inbox: a message that a handler produced cannot be published any more, and is left out", err,
				watermill.LogFields{"consumer": consumer, "topic": topic, "message_uuid": m.UUID})
		default:
			return nil, err
		}
	}
	return readable, nil
}
