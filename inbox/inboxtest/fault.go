package inboxtest

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// The faults that can happen at a call.
const (
	crashBefore = "crash before"
	crashAfter  = "crash after"
	loseBefore  = "lose before" // the connection breaks before the call has an effect
	loseAfter   = "lose after"  // the call succeeds, and the connection breaks before the answer
	slowAnswer  = "slow"        // the call succeeds, and the answer comes after the caller has given up
	failBefore  = "fail before" // the call is refused; the transaction goes on if the database allows that
	failAfter   = "fail after"  // the call succeeds and is reported as failed
	copyAt      = "copy at"     // another process gets the message too
	closeAt     = "close at"    // the router is closed
	interrupt   = "interrupt"   // the context of the statement ends while it runs
	panicBefore = "panic before"
	panicAfter  = "panic after"
)

// faultsOf are the faults for each kind of call. A crash after a statement of a transaction is
// the same as one before the next call, so it is left out.
var faultsOf = map[kind][]string{
	statement: {crashBefore, failBefore, loseBefore, loseAfter, slowAnswer, copyAt, closeAt, interrupt},
	write:     {crashBefore, crashAfter, failBefore, loseBefore, loseAfter, slowAnswer, copyAt, closeAt},
	commit:    {crashBefore, crashAfter, loseBefore, loseAfter, slowAnswer, copyAt, closeAt},
	publish:   {crashBefore, crashAfter, failBefore, failAfter, copyAt, closeAt},
	answer:    {crashBefore, crashAfter, loseBefore},
	external:  {crashBefore, crashAfter, failBefore, failAfter, copyAt, closeAt},
	callback:  {panicBefore},
	handling:  {panicBefore, panicAfter},
}

// faults returns the faults to try at a point. The broker has no copy of a stored message to give away. Background work
// belongs to no delivery and repeats by itself, so fewer faults suffice. A panic in it would end the process, except in a
// handler, where the router recovers from it.
func (r reached) faults() []string {
	switch {
	case strings.HasSuffix(r.owner, asStored):
		return slices.DeleteFunc(slices.Clone(faultsOf[r.kind]), func(what string) bool { return what == copyAt })
	case r.owner != atWork || r.kind == publish || r.kind == external || r.kind == handling:
	case r.kind == callback:
		return nil
	default:
		return []string{crashBefore, loseAfter}
	}
	return faultsOf[r.kind]
}

// fault is one fault of a play: at a named point, or, counted from the fault before it, at the n-th
// call of any kind or at the n-th commit.
type fault struct {
	what   string
	at     point
	call   int
	commit int
}

func (f fault) String() string {
	switch {
	case f.call > 0:
		return fmt.Sprintf("%s call %d", f.what, f.call)
	case f.commit > 0:
		return fmt.Sprintf("%s commit %d", f.what, f.commit)
	}
	return f.what + " " + f.at.String()
}

// schedule is the faults of one play, in the order in which they happen.
type schedule []fault

func (s schedule) String() string {
	if len(s) == 0 {
		return "nothing goes wrong"
	}
	parts := make([]string, len(s))
	for i, f := range s {
		parts[i] = f.String()
	}
	return strings.Join(parts, "; ")
}

// needsCopy reports whether the play needs a second process.
func (s schedule) needsCopy() bool {
	for _, f := range s {
		if f.what == copyAt {
			return true
		}
	}
	return false
}

var faultText = regexp.MustCompile(`^(crash before|crash after|lose before|lose after|slow|fail before|fail after|copy at|close at|interrupt|panic before|panic after) (?:call (\d+)|commit (\d+)|(\S+) (.+?)(?: #(\d+))?)$`)

// parseSchedule parses the result of String.
func parseSchedule(text string) (schedule, error) {
	var s schedule
	for part := range strings.SplitSeq(text, ";") {
		m := faultText.FindStringSubmatch(strings.TrimSpace(part))
		if m == nil {
			return nil, fmt.Errorf("%q is no fault: copy the line that a failed play printed", part)
		}
		f := fault{what: m[1], at: point{owner: m[4], what: m[5], nth: 1}}
		if m[4] == "" {
			f.at = point{}
		}
		for text, n := range map[string]*int{m[2]: &f.call, m[3]: &f.commit, m[6]: &f.at.nth} {
			if text != "" {
				*n, _ = strconv.Atoi(text) // digits
			}
		}
		s = append(s, f)
	}
	return s, nil
}
