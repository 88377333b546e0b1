// Package prefix begins the errors of a package with the package's name, once.
//
// The rule for all packages: an exported sentinel, and every error that leaves an exported
// function, begins with the package's name and a colon ("outbox: …"), where it helps with the
// type's too ("middleware.Inbox: …"); errors that such an error wraps do not repeat the name.
package prefix

import (
	"fmt"
	"strings"
)

// Errorf is fmt.Errorf with the package's name before the text. Where it wraps a sentinel of
// the same package, the text still has the name only once.
func Errorf(name, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	text := strings.TrimPrefix(err.Error(), name+": ")
	for _, before := range []string{": ", "\n"} {
		text = strings.ReplaceAll(text, before+name+": ", before)
	}
	return &named{name + ": " + text, err}
}

type named struct {
	text string
	err  error
}

func (e *named) Error() string { return e.text }
func (e *named) Unwrap() error { return e.err }
