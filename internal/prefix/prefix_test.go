package prefix_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/prefix"
)

func TestErrorsBeginWithTheNameOnce(t *testing.T) {
	t.Parallel()
	closed, other := errors.New("shop: closed"), errors.New("millrace_shop: other")
	inner := fmt.Errorf("message %q: %w", "m", closed)

	for text, err := range map[string]error{
		`shop: closed`:                             prefix.Errorf("shop", "%w", closed),
		`shop: sell: message "m": closed`:          prefix.Errorf("shop", "sell: %w", inner),
		"shop: sell: closed\nclosed":               prefix.Errorf("shop", "sell: %w", errors.Join(closed, closed)),
		`shop: sell: millrace_shop: other, closed`: prefix.Errorf("shop", "sell: %w, closed", other),
		`mall: sell: shop: closed`:                 prefix.Errorf("mall", "sell: %w", closed),
	} {
		assert.EqualError(t, err, text)
	}
	require.ErrorIs(t, prefix.Errorf("shop", "sell: %w", inner), closed)
}
