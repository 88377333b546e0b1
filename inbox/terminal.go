package inbox

import "github.com/millrace-go/millrace/internal/meaning"

// Terminal marks err as permanent: every other attempt would fail too, for example because the
// payload cannot be decoded. Terminal(nil) is nil.
func Terminal(err error) error { return meaning.Terminal(err) }

// IsTerminal reports whether err was marked by [Terminal].
func IsTerminal(err error) bool { return meaning.IsTerminal(err) }
