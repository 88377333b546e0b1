package inbox

import "errors"

// Terminal marks err as one that no other attempt would end differently, such as an
// undecodable payload. nil stays nil.
func Terminal(err error) error {
	if err == nil {
		return nil
	}
	return &terminalError{err}
}

// IsTerminal reports whether err was marked by [Terminal].
func IsTerminal(err error) bool {
	var t *terminalError
	return errors.As(err, &t)
}

type terminalError struct{ error }

func (e *terminalError) Unwrap() error { return e.error }
