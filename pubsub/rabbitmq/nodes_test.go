package rabbitmq_test

import (
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/pubsub/rabbitmq"
)

// TestNodes: each attempt begins at the node after the one before, and goes on where none answers.
func TestNodes(t *testing.T) {
	t.Parallel()
	var up []string
	for range 2 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() })
		up = append(up, l.Addr().String())
	}
	const down = "127.0.0.1:1"
	dial := rabbitmq.Nodes(down, up[0], up[1])
	for _, want := range []string{up[0], up[1], up[0], up[1]} {
		conn, err := dial("tcp", "nowhere:5672")
		require.NoError(t, err)
		assert.Equal(t, want, conn.RemoteAddr().String())
		require.NoError(t, conn.Close())
	}
	_, err := rabbitmq.Nodes(down)("tcp", up[0])
	require.Error(t, err, "the URI's own host is not used")
	conn, err := rabbitmq.Nodes()("tcp", up[0])
	require.NoError(t, err)
	require.NoError(t, conn.Close())
}
