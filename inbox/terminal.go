package inbox

import "errors"

// Terminal marks err as permanent: every other attempt would fail too, for example because the
// payload cannot be decoded. Terminal(nil) is nil.
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
