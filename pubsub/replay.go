package pubsub

import (
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/reserved"
)

// AsReplay returns a publisher that publishes through to, and says of each message that it is
// sent again on purpose: for dead letters on their way back, by Watermill's requeuer or by hand.
//
// A message keeps its UUID, payload and metadata. The field inbox.ReplayField gets name, and
// inbox.ReplayAttemptField is counted up. What Watermill's PoisonQueue has noted of the failure is left
// out, and so is what describes a delivery.
func AsReplay(to message.Publisher, name string) message.Publisher { return replaying{to, name} }

type replaying struct {
	message.Publisher
	name string
}

// Publish publishes copies, so that a letter that stays is as it was.
func (r replaying) Publish(topic string, msgs ...*message.Message) error {
	sent := make([]*message.Message, len(msgs))
	for i, msg := range msgs {
		sent[i] = r.replayed(msg)
	}
	return r.Publisher.Publish(topic, sent...)
}

func (r replaying) replayed(msg *message.Message) *message.Message {
	replay := message.NewMessage(msg.UUID, msg.Payload)
	replay.SetContext(msg.Context())
	replay.Metadata = reserved.Replayed(msg.Metadata, r.name)
	return replay
}
