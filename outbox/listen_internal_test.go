package outbox

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type waits struct{}

func (*waits) WaitForNotification(context.Context) (*notice, error) { return &notice{"own"}, nil }

type notice struct{ Payload string }

type waitsForLess struct{}

func (*waitsForLess) WaitForNotification(context.Context) (int, error) { return 1, nil }

type waitsOtherwise struct{}

func (*waitsOtherwise) WaitForNotification(int) (int, error) { return 1, nil }

type of[T any] struct{ conn T }

func (c of[T]) Conn() T { return c.conn }

func TestOnlyAConnectionLikePgxWaits(t *testing.T) {
	wait := waiter(of[*waits]{&waits{}})
	require.NotNil(t, wait)
	payload, err := wait(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "own", payload)
	for _, other := range []any{
		struct{}{}, of[int]{}, of[*waits]{}, of[any]{}, of[*waitsOtherwise]{&waitsOtherwise{}}, of[*waitsForLess]{&waitsForLess{}},
	} {
		assert.Nil(t, waiter(other), "%T", other)
	}
}
