package ambient_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/internal/ambient"
)

func TestSuppressedMessagesAreCounted(t *testing.T) {
	assert.False(t, ambient.Suppresses(t.Context(), 1))
	ctx, counted := ambient.Suppress(t.Context())
	_, _, a := begin(t)
	for _, derived := range []context.Context{ctx, context.WithoutCancel(ctx), ambient.With(ctx, a)} {
		assert.True(t, ambient.Suppresses(derived, 2))
	}
	counted.Add(1)
	assert.Equal(t, 7, counted.Count())
	counted.End()
	assert.False(t, ambient.Suppresses(ctx, 1))
	assert.Equal(t, 7, counted.Count())
}
