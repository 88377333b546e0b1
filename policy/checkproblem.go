package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Problem is one thing that is wrong with a Policy.
type Problem struct {
	// File and Line say where, if the Policy was read from a file.
	File string
	Line int

	// Path is the field, such as consumers.mailer.retention. It is empty for what no field
	// says.
	Path string

	// Text says what is wrong, and the way out.
	Text string
}

func (p Problem) Error() string {
	var b strings.Builder
	if p.File != "" {
		fmt.Fprintf(&b, "%s:%d: ", p.File, p.Line)
	}
	if p.Path != "" {
		b.WriteString(p.Path + ": ")
	}
	return b.String() + p.Text
}

// Problems are all that is wrong with a Policy, as [Read] and [Policy.Check] return them: by
// line where there are lines, else by path.
type Problems []Problem

// Error has a line for each.
func (p Problems) Error() string {
	lines := make([]string, 0, len(p))
	for _, one := range p {
		lines = append(lines, one.Error())
	}
	return strings.Join(lines, "\n")
}

// sorted returns each of them once; nil if there are none.
func (p Problems) sorted() error {
	if len(p) == 0 {
		return nil
	}
	slices.SortFunc(p, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Path, b.Path), cmp.Compare(a.Text, b.Text))
	})
	return slices.Compact(p)
}
