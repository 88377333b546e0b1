package inboxtest

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// What can happen at a call.
const (
	crashBefore = "crash before"
	crashAfter  = "crash after"
	loseBefore  = "lose before" // the connection breaks, and nothing was done
	loseAfter   = "lose after"  // it was done, and the connection breaks before the answer
	slowAnswer  = "slow"        // it was done, and the answer comes when nobody waits for it
	failBefore  = "fail before" // refused, and nothing else: the transaction lives on where the database keeps it
	failAfter   = "fail after"  // it was done, and reported as failed
	copyAt      = "copy at"     // another process is given the message as well
	closeAt     = "close at"    // the router is closed
	interrupt   = "interrupt"   // the context of the statement ends while it runs
	panicBefore = "panic before"
	panicAfter  = "panic after"
)

// faultsOf returns what can happen at a call of each kind. After a statement of a
// transaction a crash is the same as before the next one.
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

// faults returns what is tried at a point. What the background does is nobody's delivery,
// and comes again by itself; a panic there would end the process, but for a handler's, which
// the router recovers.
func (r reached) faults() []string {
	switch {
	case r.owner != atWork || r.kind == publish || r.kind == external || r.kind == handling:
	case r.kind == callback:
		return nil
	default:
		return []string{crashBefore, loseAfter}
	}
	return faultsOf[r.kind]
}

// Fault is one thing that goes wrong in a play: at a call that is named, or at the n-th
// call of any kind, or the n-th commit, after the fault before.
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

// Schedule is the faults of one play, in the order in which they happen.
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

// needsCopy reports whether a second process takes part.
func (s schedule) needsCopy() bool {
	for _, f := range s {
		if f.what == copyAt {
			return true
		}
	}
	return false
}

var faultText = regexp.MustCompile(`^(crash before|crash after|lose before|lose after|slow|fail before|fail after|copy at|close at|interrupt|panic before|panic after) (?:call (\d+)|commit (\d+)|(\S+) (.+?)(?: #(\d+))?)$`)

// parseSchedule reads what String wrote.
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
				*n, _ = strconv.Atoi(text) // it is a number
			}
		}
		s = append(s, f)
	}
	return s, nil
}
