package bounded_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/internal/bounded"
)

func TestACountSaysWhereItEnded(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "3", bounded.UpTo(3, 3).String())
	assert.Equal(t, "3+", bounded.UpTo(4, 3).String())
	assert.Equal(t, "5+", bounded.UpTo(4, 3).Plus(bounded.UpTo(2, 3)).String())
	assert.Equal(t, "4", bounded.UpTo(2, 3).Plus(bounded.UpTo(2, 3)).String())
}
