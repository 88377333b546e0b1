package leasetest

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
)

func closing(t *testing.T, open Open) {
	var c counter
	p, other := start(t, open(t)), start(t, open(t))
	h := p.wrap(func(*message.Message) ([]*message.Message, error) {
		return []*message.Message{message.NewMessage("out", nil)}, nil
	})
	require.NoError(t, deliver(p.wrap(c.handle), "before"))
	msg := message.NewMessage("a", nil)
	_, err := h(msg)
	require.NoError(t, err)

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorContains(t, p.leases.Close(ended), "1 handlers are still running")
	require.ErrorIs(t, deliver(h, "b"), inbox.ErrClosed)
	msg.Ack() // what it returned is published
	require.NoError(t, p.leases.Close(t.Context()))
	require.NoError(t, p.leases.Close(t.Context()))
	require.NoError(t, deliver(other.wrap(c.handle), "a"))
	assert.Zero(t, c.of("a"), "not confirmed when Close returned")
}
