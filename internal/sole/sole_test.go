package sole_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/internal/sole"
)

type answer struct{ error }

func TestAs(t *testing.T) {
	whole, other := &answer{errors.New("of each")}, errors.New("the other one")
	for name, c := range map[string]struct {
		err error
		is  bool
	}{
		"nil":                 {nil, false},
		"another":             {other, false},
		"itself":              {whole, true},
		"wrapped":             {fmt.Errorf("twice: %w", fmt.Errorf("publish: %w", whole)), true},
		"joined":              {errors.Join(whole, other), false},
		"joined with nothing": {errors.Join(whole), false},
		"two in one text":     {fmt.Errorf("%w: %w", whole, other), false},
	} {
		found, is := sole.As[*answer](c.err)
		assert.Equal(t, c.is, is, name)
		assert.Equal(t, c.is, found == whole, name)
	}
}
