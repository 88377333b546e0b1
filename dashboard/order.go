package dashboard

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
)

// order is how a list is sorted.
type order struct {
	column string
	down   bool
}

// ordered returns the order that the address names: a column, after a minus sign if the greatest comes first.
func (v *visit) ordered(usual order, columns ...string) (order, error) {
	text := v.query("sort")
	column, down := strings.CutPrefix(text, "-")
	switch {
	case text == "":
		return usual, nil
	case !slices.Contains(columns, column):
		return usual, problem{http.StatusBadRequest, "This list cannot be sorted by " + text + "."}
	}
	return order{column, down}, nil
}

func (o order) String() string {
	if o.down {
		return "-" + o.column
	}
	return o.column
}

// heading is the head of a column by which a list can be sorted.
type heading struct {
	Label  string
	Class  string
	To     string // the list in that order, or in the opposite order if it is in that
	Sorted string // "ascending" or "descending", if the list is sorted by it
}

// heading returns the head of the column of usual, which is the order that comes first.
func (o order) heading(usual order, label, class string, to func(sort string) string) *heading {
	next, sorted := usual, ""
	if o.column == usual.column {
		next = order{o.column, !o.down}
		sorted = "ascending"
		if o.down {
			sorted = "descending"
		}
	}
	return &heading{label, class, to(next.String()), sorted}
}

// sorted sorts a list by the column of o.
func sorted[T any](o order, all []T, by map[string]func(a, b T) int) {
	compare := by[o.column]
	slices.SortStableFunc(all, func(a, b T) int {
		if o.down {
			return compare(b, a)
		}
		return compare(a, b)
	})
}

// byFigure compares two rows by a figure.
func byFigure[T any, N cmp.Ordered](figure func(T) N) func(a, b T) int {
	return func(a, b T) int { return cmp.Compare(figure(a), figure(b)) }
}
