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

	// Path is the field, such as consumers.mailer.retention. It is empty if the problem belongs to
	// no field.
	Path string

	// Text says what is wrong and how to fix it.
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

// Problems are all the problems of a Policy, as [Read] and [Policy.Check] return them, sorted by
// line if there are lines, else by path.
type Problems []Problem

// Error returns one line for each problem.
func (p Problems) Error() string {
	lines := make([]string, 0, len(p))
	for _, one := range p {
		lines = append(lines, one.Error())
	}
	return strings.Join(lines, "\n")
}

// sorted returns the problems in order without duplicates, nil if there are none.
func (p Problems) sorted() error {
	if len(p) == 0 {
		return nil
	}
	slices.SortFunc(p, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Path, b.Path), cmp.Compare(a.Text, b.Text))
	})
	return slices.Compact(p)
}
