package leasetest

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func nackedByHandler(t *testing.T, open Open) {
	for _, uuid := range []string{"a", "b"} {
		var c counter
		p := start(t, open(t))
		nacks := true
		h := p.wrap(func(msg *message.Message) ([]*message.Message, error) {
			if nacks {
				msg.Nack()
			} else {
				_, _ = c.handle(msg)
			}
			if uuid == "b" {
				return []*message.Message{message.NewMessage("out", nil)}, nil
			}
			return nil, nil
		})
		out, err := h(message.NewMessage(uuid, nil))
		require.ErrorContains(t, err, "nacked while its handler ran")
		assert.Empty(t, out)
		assert.Equal(t, 1, p.events.count("failed"))

		nacks = false
		again := message.NewMessage(uuid, nil)
		_, err = h(again)
		require.NoError(t, err)
		again.Ack()
		require.NoError(t, deliver(h, uuid))
		assert.Equal(t, 1, c.of(uuid))
	}
}

func answeredBefore(t *testing.T, open Open) {
	var c counter
	h := start(t, open(t)).wrap(c.handle)
	for says, answer := range map[string]func(*message.Message) bool{
		"remove InstantAck": (*message.Message).Ack, "instead of calling Nack": (*message.Message).Nack,
	} {
		msg := message.NewMessage("a", nil)
		answer(msg)
		_, err := h(msg)
		require.ErrorContains(t, err, says)
	}
	assert.Zero(t, c.of("a"))
}
