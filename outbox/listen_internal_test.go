package outbox

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
)

type waits struct{}

func (*waits) WaitForNotification(context.Context) (int, error) { return 1, nil }

type waitsOtherwise struct{}

func (*waitsOtherwise) WaitForNotification(int) (int, error) { return 1, nil }

type of[T any] struct{ conn T }

func (c of[T]) Conn() T { return c.conn }

func TestOnlyAConnectionLikePgxWaits(t *testing.T) {
	assert.NotNil(t, waiter(of[*waits]{&waits{}}))
	assert.NoError(t, waiter(of[*waits]{&waits{}})(t.Context()))
	for _, other := range []any{
		struct{}{}, of[int]{}, of[*waits]{}, of[any]{}, of[*waitsOtherwise]{&waitsOtherwise{}},
	} {
		assert.Nil(t, waiter(other), "%T", other)
	}
}
