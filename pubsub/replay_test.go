package pubsub_test

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/pubsub"
)

// passing keeps what it is to publish.
type passing struct {
	topic string
	sent  []*message.Message
	err   error
}

func (p *passing) Publish(topic string, msgs ...*message.Message) error {
	p.topic, p.sent = topic, append(p.sent, msgs...)
	return p.err
}

func (p *passing) Close() error { return assert.AnError }

func TestAsReplayKeepsTheMessageAndNotItsFailure(t *testing.T) {
	through := &passing{}
	p := pubsub.AsReplay(through, "of May")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	letter := message.NewMessage("id", []byte("payload"))
	letter.SetContext(ctx)
	letter.Metadata = message.Metadata{
		"key": "value", "_watermill_requeuer_retries": "2", "_millrace_amqp_redelivered": "true", inbox.ReplayAttemptField: "4",
		middleware.ReasonForPoisonedKey: "r", middleware.PoisonedTopicKey: "t", middleware.PoisonedHandlerKey: "h",
		middleware.PoisonedSubscriberKey: "s",
	}
	before := letter.Copy()
	bare := &message.Message{UUID: "bare"}
	require.NoError(t, p.Publish("orders", letter, bare))
	require.True(t, letter.Equals(before), "the letter is as it was")
	require.Nil(t, bare.Metadata)
	require.Equal(t, "orders", through.topic)
	require.Len(t, through.sent, 2)
	sent := through.sent[0]
	assert.Equal(t, "id", sent.UUID)
	assert.Equal(t, "payload", string(sent.Payload))
	assert.Equal(t, ctx, sent.Context())
	assert.Equal(t, message.Metadata{
		"key": "value", "_watermill_requeuer_retries": "2", inbox.ReplayField: "of May", inbox.ReplayAttemptField: "5",
	}, sent.Metadata)
	assert.Equal(t, message.Metadata{inbox.ReplayField: "of May", inbox.ReplayAttemptField: "1"}, through.sent[1].Metadata)

	through.err = assert.AnError
	require.ErrorIs(t, p.Publish("orders", letter), assert.AnError)
	require.ErrorIs(t, p.Close(), assert.AnError)
}
