package inboxtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// play is one run of a scenario, with the faults of a schedule.
type play struct {
	*place
	scenario *Scenario
	schedule schedule
	inputs   []Input
	encore   *encore
	broker   *broker
	began    time.Time
	ended    sync.WaitGroup // closes processes that died
	begun    atomic.Int64   // calls with an effect that others see …
	done     atomic.Int64   // … and those of them that have ended
	asked    asked

	refusable *message.Message // the broker gives it up after too many refusals

	mu        sync.Mutex
	processes []*Process
	lead      *Process // gets the messages
	follow    *Process // gets copies
	counts    map[point]int
	reached   []reached
	since     int // calls since the last fault
	commits   int // commits since the last fault
	happened  int // faults so far
	timeline  []entry
	findings  []finding
}

// asked is the last answer of the database to the question what is left to do.
type asked struct {
	left string
	at   time.Time
	done int64 // calls that had ended by then
}

// reached is a point that a play has reached.
type reached struct {
	point
	kind kind
	line int // of the timeline
}

// entry is a line of the timeline.
type entry struct {
	at      time.Duration
	process int
	what    string
	fault   string
	place   string // the user's line
	result  string
	cutOff  bool // its context ended before it did
}

// reach counts a call and returns the fault that is due at it.
func (pl *play) reach(p *Process, c call, place string) (fault string, line int) {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	at := point{owner: c.owner, what: c.what}
	pl.counts[at]++
	at.nth = pl.counts[point{owner: c.owner, what: c.what}]
	if c.owner != atStart {
		pl.reached = append(pl.reached, reached{at, c.kind, len(pl.timeline)})
		pl.since++
		if c.kind == commit {
			pl.commits++
		}
		if pl.happened < len(pl.schedule) && pl.schedule[pl.happened].hits(at, c.kind, pl.since, pl.commits) {
			fault = pl.schedule[pl.happened].what
			pl.happened++
			pl.since, pl.commits = 0, 0
		}
	}
	pl.timeline = append(pl.timeline, entry{
		at: time.Since(pl.began), process: p.number, what: at.String(), fault: fault, place: place,
	})
	return fault, len(pl.timeline) - 1
}

// hits reports whether the fault is due at a call. A counted fault is due at the first call where it is possible.
func (f fault) hits(at point, k kind, since, commits int) bool {
	if f.call > 0 || f.commit > 0 && k == commit {
		return since >= f.call && commits >= f.commit && slices.Contains(reached{point: at, kind: k}.faults(), f.what)
	}
	return f.at == at
}

// result records the error of a call.
func (pl *play) result(line int, err error) {
	if err == nil {
		return
	}
	pl.mu.Lock()
	defer pl.mu.Unlock()
	pl.timeline[line].result = err.Error()
	pl.timeline[line].cutOff = errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// note adds a line to the timeline that is not a call.
func (pl *play) note(p *Process, format string, args ...any) {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	e := entry{at: time.Since(pl.began), what: fmt.Sprintf(format, args...)}
	if p != nil {
		e.process = p.number
	}
	pl.timeline = append(pl.timeline, e)
}

// started is noted of a process whose router runs.
const started = "starts"

func (pl *play) hasFindings() bool {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	return len(pl.findings) > 0
}

func (pl *play) leader() *Process {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	return pl.lead
}

func (pl *play) follower() *Process {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	return pl.follow
}

// closeNow closes a process in the middle of a call. It waits until the process is gone, for standstill at most.
func (pl *play) closeNow(p *Process) {
	pl.note(p, "is closed")
	pl.ended.Go(p.end)
	select {
	case <-p.gone:
	case <-time.After(standstill):
	}
}

// run plays the scenario until nothing is left to do, and returns the outcome.
func (pl *play) run() (*outcome, error) {
	pl.began, pl.counts = time.Now(), map[point]int{}
	pl.broker = newBroker(pl, pl.inputs)
	defer pl.endAll()
	for range restarts {
		if err := pl.untilQuiet(); err != nil {
			return nil, err
		}
		switch died := pl.endAll(); {
		case died:
		case pl.encore == nil:
			return pl.collect()
		default:
			if err := pl.encore.before(pl.place); err != nil {
				return nil, err
			}
			pl.note(nil, "%s", pl.encore.note)
			pl.broker.deliver(pl.encore.inputs)
			pl.encore = nil
		}
	}
	return nil, fmt.Errorf("after %d restarts, there is still work left", restarts)
}

// restarts bounds the restarts of a play: more are not caused by the faults.
const restarts = 20

// untilQuiet starts processes until nothing is left to do.
func (pl *play) untilQuiet() error {
	began, spent := time.Now(), time.Duration(0)
	for started, last := 0, began; ; {
		if p := pl.leader(); p == nil || p.stopping.Load() {
			if started++; started > restarts {
				return fmt.Errorf("the service died or was closed %d times", restarts)
			}
			if p != nil && !p.dead() {
				p.end()
			}
			if err := pl.startAll(); err != nil {
				return err
			}
		}
		left := pl.leftToDo()
		if left == "" {
			return nil
		}
		if hopeless := pl.broker.hopeless(); hopeless != "" {
			return fmt.Errorf("I2, I6: stuck: %s", hopeless)
		}
		if patience := pl.scenario.Patience; spent > patience || time.Since(began) > 10*patience {
			return fmt.Errorf("I2, I6: stuck: after %v %s", pl.scenario.Patience, left)
		}
		time.Sleep(quietPoll)
		spent += min(time.Since(last), longestLook) // a busy machine, where a look takes longer, has more time
		last = time.Now()
	}
}

// How long untilQuiet pauses, and what a look of it takes at most with the pause, unless the machine is busy.
const (
	quietPoll   = 2 * time.Millisecond
	longestLook = 5 * time.Millisecond
)

// startAll starts a process for the messages and, the first time, another one for copies if the
// schedule needs it.
func (pl *play) startAll() error {
	lead, err := pl.start()
	if err != nil {
		return err
	}
	follow := pl.follower()
	if follow == nil && pl.schedule.needsCopy() {
		if follow, err = pl.start(); err != nil {
			return err
		}
	}
	pl.mu.Lock()
	pl.lead, pl.follow = lead, follow
	pl.mu.Unlock()
	pl.broker.mu.Lock()
	pl.broker.change()
	pl.broker.mu.Unlock()
	return nil
}

// leftToDo returns what is left to do, or "". Its checks run one after the other, so their results
// count only if no call was made meanwhile.
func (pl *play) leftToDo() string {
	done, begun := pl.done.Load(), pl.begun.Load()
	if left := pl.broker.unanswered(); left != "" {
		return left
	}
	if a := &pl.asked; a.left == "" || a.done != done || time.Since(a.at) > staleAnswer {
		*a = asked{left: pl.pending(), at: time.Now(), done: done}
	}
	if pl.asked.left != "" {
		return pl.asked.left
	}
	if done != begun || pl.begun.Load() != begun {
		return "calls keep being made"
	}
	return ""
}

// staleAnswer is after how long the database is asked again even if no process has made a call: a
// service may have connections that the play does not see.
const staleAnswer = 100 * time.Millisecond

// endAll closes every process. It reports whether a fault happened meanwhile.
func (pl *play) endAll() (disturbed bool) {
	pl.mu.Lock()
	all, before := slices.Clone(pl.processes), pl.happened
	pl.lead, pl.follow = nil, nil
	pl.mu.Unlock()
	for _, p := range all {
		p.end()
	}
	pl.ended.Wait()
	return pl.faultsSoFar() != before
}

func (pl *play) faultsSoFar() int {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	return pl.happened
}

// story returns the timeline as text, without the calls at the start of a process that has started.
func (pl *play) story() string {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	var text strings.Builder
	for _, e := range pl.timeline {
		if strings.HasPrefix(e.what, atStart+" ") && slices.ContainsFunc(pl.timeline, func(other entry) bool {
			return other.process == e.process && other.what == started
		}) {
			continue
		}
		fmt.Fprintf(&text, "  %7.1f ms  ", float64(e.at.Microseconds())/1000)
		if e.process > 0 {
			fmt.Fprintf(&text, "process %d  ", e.process)
		}
		text.WriteString(e.what)
		if e.place != "" {
			fmt.Fprintf(&text, "  (%s)", e.place)
		}
		if e.fault != "" {
			fmt.Fprintf(&text, "  <== %s", strings.ToUpper(e.fault))
		}
		if e.result != "" {
			fmt.Fprintf(&text, "  error: %s", e.result)
		}
		text.WriteByte('\n')
	}
	return text.String()
}
