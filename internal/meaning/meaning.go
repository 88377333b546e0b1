// Package meaning holds errors that say what happens to a message, for packages that inbox imports:
// a codec for payloads returns them, or a store of leases. Package inbox exports them as its own.
package meaning

import "errors"

// The sentinels are inbox.ErrErased and inbox.ErrLeaseLost.
var (
	ErrErased    = errors.New("the payload was erased")
	ErrLeaseLost = errors.New("the lease was lost: another process may have handled this message as well")
)

// Terminal is inbox.Terminal.
func Terminal(err error) error {
	if err == nil {
		return nil
	}
	return &terminal{err}
}

// IsTerminal is inbox.IsTerminal.
func IsTerminal(err error) bool {
	var t *terminal
	return errors.As(err, &t)
}

type terminal struct{ error }

func (t *terminal) Unwrap() error { return t.error }
