package inbox

import "github.com/millrace-go/millrace/internal/meaning"

// Terminal marks err as one that no other attempt would end differently, such as an
// undecodable payload. nil stays nil.
func Terminal(err error) error { return meaning.Terminal(err) }

// IsTerminal reports whether err was marked by [Terminal].
func IsTerminal(err error) bool { return meaning.IsTerminal(err) }
