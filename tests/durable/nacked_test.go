package durable_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

var nackBodies = []testdb.Body{
	{Name: "a message that its handler nacks", Why: "as a message that fails", Run: inBothModes(func(t *testing.T, b *bed, mode pubsub.Mode) {
		durable, runs := quick(b.store), &counter{}
		durable.Mode = mode
		s := b.inboxed(durable, func(msg *message.Message) error {
			if runs.run(msg) < 3 {
				msg.Nack()
			}
			return effect(msg)
		})
		msg := newMessage()
		assert.True(t, s.deliver(msg))
		rig.Eventually(b, "it is handled", func() bool { return b.effects(msg) == 1 && b.rows() == 0 })
		assert.Equal(t, 3, runs.of(msg))
		assert.True(t, s.deliver(msg), "a late copy")
		assert.Equal(t, 3, runs.of(msg))
	})},
}
