// Package bounded has numbers that were counted up to a limit.
package bounded

import "fmt"

// Count is a number of messages, counted up to a limit.
type Count struct {
	N       int
	AtLeast bool // there may be more
}

// UpTo returns a count of n that ended behind most.
func UpTo(n, most int) Count { return Count{N: min(n, most), AtLeast: n > most} }

// Plus returns the sum of c and other. There may be more of it if there may be of one of them.
func (c Count) Plus(other Count) Count {
	return Count{N: c.N + other.N, AtLeast: c.AtLeast || other.AtLeast}
}

// String returns the number, with a plus where there may be more.
func (c Count) String() string {
	if c.AtLeast {
		return fmt.Sprintf("%d+", c.N)
	}
	return fmt.Sprint(c.N)
}
