// Package bounded has counts that stop at a limit.
package bounded

import "fmt"

// Count is a number of messages, counted up to a limit.
type Count struct {
	N       int
	AtLeast bool // there may be more
}

// UpTo returns the count of n, of which AtLeast is set if n is more than most.
func UpTo(n, most int) Count { return Count{N: min(n, most), AtLeast: n > most} }

// Plus returns the sum of c and other. AtLeast is set if it is set in one of them.
func (c Count) Plus(other Count) Count {
	return Count{N: c.N + other.N, AtLeast: c.AtLeast || other.AtLeast}
}

// String returns the number, with a plus sign if AtLeast is set.
func (c Count) String() string {
	if c.AtLeast {
		return fmt.Sprintf("%d+", c.N)
	}
	return fmt.Sprint(c.N)
}
