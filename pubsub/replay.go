package pubsub

import (
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/reserved"
)

// AsReplay returns a publisher that publishes through to, and marks each message as sent again on
// purpose: for dead letters that Watermill's requeuer, or an operator, sends back.
//
// A message keeps its UUID, payload and metadata. AsReplay sets inbox.ReplayField to name and
// counts inbox.ReplayAttemptField up. It leaves out the metadata in which Watermill's PoisonQueue
// describes the failure, and that which describes a delivery.
func AsReplay(to message.Publisher, name string) message.Publisher { return replaying{to, name} }

type replaying struct {
	message.Publisher
	name string
}

// Publish publishes copies, so that a dead letter that stays behind is unchanged.
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
