package rabbitmq_test

import (
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/pubsub/rabbitmq"
)

func TestNodesAreTriedInTurn(t *testing.T) {
	t.Parallel()
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() }) // one is closed already
		return l
	}
	down, first, second := listen(), listen(), listen()
	require.NoError(t, down.Close())
	reached := func(dial func(network, address string) (net.Conn, error)) string {
		conn, err := dial("tcp", second.Addr().String())
		require.NoError(t, err)
		require.NoError(t, conn.Close())
		return conn.RemoteAddr().String()
	}
	dial := rabbitmq.Nodes(down.Addr().String(), first.Addr().String(), second.Addr().String())
	for _, want := range []net.Listener{first, second, first, second} {
		assert.Equal(t, want.Addr().String(), reached(dial))
	}
	assert.Equal(t, second.Addr().String(), reached(rabbitmq.Nodes()), "the address of the URI")
	_, err := rabbitmq.Nodes(down.Addr().String())("tcp", second.Addr().String())
	require.Error(t, err)
}
