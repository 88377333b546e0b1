package original_test

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/internal/original"
)

func newMessage() *message.Message {
	msg := message.NewMessage("1", []byte("payload"))
	msg.Metadata.Set("colour", "blue")
	return msg
}

func TestKeptMessagesAreNotChanged(t *testing.T) {
	msg := newMessage()
	bytes := msg.Payload
	original.Keep(msg)
	msg.Payload[0] = 'x'
	msg.Metadata.Set("colour", "red")
	o := original.From(msg)
	assert.Equal(t, "payload", string(o.Payload))
	assert.Equal(t, "payload", string(bytes), "the source may deliver its bytes again")
	assert.Equal(t, message.Metadata{"colour": "blue"}, o.Metadata)
	assert.False(t, o.Is(msg))
	original.Keep(msg)
	assert.Same(t, o, original.From(msg), "who comes first keeps it")
}

func TestAContextOfAnotherMessageTellsNothing(t *testing.T) {
	msg := newMessage()
	original.Keep(msg)
	other := message.NewMessageWithContext(msg.Context(), "2", []byte("made of it"))
	assert.Nil(t, original.From(other))
	unpacked := message.NewMessageWithContext(msg.Context(), "1", []byte("unpacked"))
	assert.Same(t, original.From(msg), original.From(unpacked))
	original.Keep(unpacked) // by another subscription
	assert.Equal(t, "unpacked", string(original.From(unpacked).Payload))

	queued := newMessage()
	o := original.Queued("orders", "1", []byte("stored"), nil, queued)
	queued.SetContext(original.With(context.Background(), o))
	copied := queued.CopyWithContext() // by a decorator around the queue
	original.Keep(copied)
	assert.Same(t, o, original.From(copied))
}

func TestNilStaysNil(t *testing.T) {
	msg := &message.Message{UUID: "1"}
	d := original.Arrive(msg)
	d.HandOver(msg)
	assert.Nil(t, msg.Payload)
	assert.Nil(t, msg.Metadata)
	msg.Payload, msg.Metadata = message.Payload{}, message.Metadata{}
	d.Restore(msg)
	assert.Nil(t, msg.Payload)
	assert.Nil(t, msg.Metadata)
}

func TestADeliveryKnowsWhetherItChangedOnItsWay(t *testing.T) {
	msg := newMessage()
	original.Keep(msg)
	d := original.Arrive(msg)
	assert.False(t, d.Changed())
	msg.Payload = message.Payload("unpacked")
	d = original.Arrive(msg)
	assert.True(t, d.Changed())
	d.HandOver(msg)
	msg.Payload[0] = 'x'
	d.Restore(msg)
	assert.Equal(t, "unpacked", string(msg.Payload))
	assert.Equal(t, "payload", string(d.Came.Payload))
}

func TestAMessageThatIsProducedStandsApart(t *testing.T) {
	msg, other := newMessage(), newMessage()
	d := original.Arrive(msg)
	d.HandOver(msg)
	msg.Payload = message.Payload("made")
	ctx := msg.Context()
	handler, end := context.WithCancel(ctx)
	msg.SetContext(handler)
	produced := original.Apart(ctx, []*message.Message{other, msg}, msg)
	end()
	d.Restore(msg)
	assert.Same(t, other, produced[0])
	assert.Equal(t, "made", string(produced[1].Payload))
	assert.NoError(t, produced[1].Context().Err(), "it is published after the handler")
	assert.Equal(t, "payload", string(msg.Payload))
}
