package inboxtest

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// Duplicate delivers each message twice, one after the other.
func Duplicate(t testing.TB, s Scenario) {
	t.Helper()
	playInputs(t, s, func(inputs []Input) []Input {
		var twice []Input
		for _, in := range inputs {
			twice = append(twice, in, in)
		}
		return twice
	})
}

// ReplaySameID delivers all messages again when all were handled.
func ReplaySameID(t testing.TB, s Scenario) {
	t.Helper()
	playInputs(t, s, func(inputs []Input) []Input { return slices.Concat(inputs, inputs) })
}

// ExpiredRetention delivers all messages again when they are handled and forgotten, as after
// the retention of the inbox. A message that tells when it was made, and that is some time
// ago, is recognized as too old, and parked; another one is handled again. So the messages
// need a time, in ce_time for instance, of yesterday.
func ExpiredRetention(t testing.TB, s Scenario) {
	t.Helper()
	stage := newStage(t, s)
	right := stage.rehearse()
	if right == nil {
		return
	}
	late := plan{encore: &encore{
		title: "copies after the retention", note: "the retention is over, and all messages come again",
		inputs: stage.scenario.Inputs, before: (*place).forget,
	}}
	pl, o, err := stage.play(late)
	if err == nil {
		o.open = right.open // what is parked is as it should be
		if problems := o.against(&right.outcome); len(problems) > 0 {
			err = errors.New(strings.Join(problems, "\n  "))
		}
	}
	if err != nil {
		stage.report([]plan{late}, []string{"  " + err.Error() + "\n" + storyOf(pl)})
	}
}

// OffsetReset delivers the messages from the first on again, each time one was handled.
func OffsetReset(t testing.TB, s Scenario) {
	t.Helper()
	playInputs(t, s, func(inputs []Input) []Input {
		var all []Input
		for n := range inputs {
			all = append(all, inputs[:n+1]...)
		}
		return all
	})
}

// OldVersion delivers each message once more behind those that came after it: a version
// that its aggregate has left behind.
func OldVersion(t testing.TB, s Scenario) {
	t.Helper()
	for n := range s.Inputs {
		playInputs(t, s, func(inputs []Input) []Input { return append(slices.Clone(inputs), inputs[n]) })
	}
}

// FutureVersion delivers each message before the one that precedes it: a version whose
// predecessor is not there yet.
func FutureVersion(t testing.TB, s Scenario) {
	t.Helper()
	for n := 1; n < len(s.Inputs); n++ {
		playInputs(t, s, func(inputs []Input) []Input {
			swapped := slices.Clone(inputs)
			swapped[n-1], swapped[n] = swapped[n], swapped[n-1]
			return swapped
		})
	}
}

// HeldThenReleased delivers the messages in the reverse order, with a crash at each point:
// where versions are held, it is while they are released.
func HeldThenReleased(t testing.TB, s Scenario) {
	t.Helper()
	stage := newStage(t, s)
	right := stage.rehearse()
	if right == nil {
		return
	}
	reversed := slices.Clone(s.Inputs)
	slices.Reverse(reversed)
	plain := plan{inputs: reversed}
	pl, _, err := stage.play(plain)
	if err != nil {
		stage.report([]plan{plain}, []string{"  " + err.Error() + "\n" + storyOf(pl)})
		return
	}
	plans := []plan{plain}
	for _, at := range pointsOf(pl) {
		for _, what := range at.faults() {
			if what == crashBefore || what == crashAfter {
				plans = append(plans, plan{inputs: reversed, faults: schedule{{what: what, at: at.point}}})
			}
		}
	}
	stage.playAll(right, plans)
}

// Collision delivers each message once more with its id and another payload, a blank longer. That may change
// nothing, and may not pass in silence: it is refused, or stored for an operator.
func Collision(t testing.TB, s Scenario) {
	t.Helper()
	stage := newStage(t, s)
	right := stage.rehearse()
	if right == nil {
		return
	}
	for i, in := range s.Inputs {
		forged := in.Message.Copy()
		forged.Payload = append(slices.Clone(forged.Payload), ' ') // which most handlers understand
		forgery := plan{inputs: append(slices.Clone(s.Inputs), Input{Topic: in.Topic, Message: forged})}
		pl, o, err := stage.play(forgery)
		if err != nil { // it is refused as long as it is delivered
			if pl == nil || pl.broker.hopeless() == "" {
				t.Errorf("inboxtest: input %d with another payload: %v\n%s", i+1, err, storyOf(pl))
			}
			continue
		}
		silent := slices.Equal(o.open, right.open)
		o.open = right.open
		problems := o.against(&right.outcome)
		if silent {
			problems = append(problems, "I7: the other payload was acked, and nothing tells of it")
		}
		for _, p := range problems {
			t.Errorf("inboxtest: input %d with another payload: %s\n%s", i+1, p, pl.story())
		}
	}
}

// ConcurrentCopies gives each message to another process as well, at each point of its
// handling.
func ConcurrentCopies(t testing.TB, s Scenario) {
	t.Helper()
	playFaults(t, s, func(at reached, what string) bool { return what == copyAt })
}

// Rebalance gives each message to another process, at each point of its handling, and closes
// the one that has it.
func Rebalance(t testing.TB, s Scenario) {
	t.Helper()
	stage := newStage(t, s)
	right := stage.rehearse()
	if right == nil {
		return
	}
	var plans []plan
	for _, at := range right.points {
		if slices.Contains(at.faults(), copyAt) {
			plans = append(plans, plan{faults: schedule{{what: copyAt, at: at.point}, {what: closeAt, call: 1}}})
		}
	}
	stage.playAll(right, plans)
}

// CrashBeforeCommit has the process die before each commit.
func CrashBeforeCommit(t testing.TB, s Scenario) {
	t.Helper()
	playFaults(t, s, func(at reached, what string) bool { return at.kind == commit && what == crashBefore })
}

// CrashAfterCommit has the process die after each commit, and the answer to a commit get lost.
func CrashAfterCommit(t testing.TB, s Scenario) {
	t.Helper()
	playFaults(t, s, func(at reached, what string) bool {
		return at.kind == commit && (what == crashAfter || what == loseAfter)
	})
}

// InterruptedStatement has the context of each statement end while the statement runs, as that of
// a query with a deadline of its own does. On SQLite the whole transaction is rolled back then.
func InterruptedStatement(t testing.TB, s Scenario) {
	t.Helper()
	playFaults(t, s, func(_ reached, what string) bool { return what == interrupt })
}

// Panics has the handler panic, before it has done anything and after it has done everything, and
// each callback that calls [Process.Callback].
func Panics(t testing.TB, s Scenario) {
	t.Helper()
	playFaults(t, s, func(_ reached, what string) bool { return what == panicBefore || what == panicAfter })
}

// SideEffectThenCrash has the process die after each message that it published and each call
// of [Process.External].
func SideEffectThenCrash(t testing.TB, s Scenario) {
	t.Helper()
	playFaults(t, s, func(at reached, what string) bool {
		return (at.kind == publish || at.kind == external) && what == crashAfter
	})
}

// StaleClaim has the process die at each point between taking a message and being done with
// it: what it held must not keep the message from being handled.
func StaleClaim(t testing.TB, s Scenario) {
	t.Helper()
	playFaults(t, s, func(at reached, what string) bool {
		return at.owner != atWork && (what == crashBefore || what == crashAfter)
	})
}

// playFaults plays what Exhaust would, as far as it is wanted.
func playFaults(t testing.TB, s Scenario, wanted func(at reached, what string) bool) {
	t.Helper()
	stage := newStage(t, s)
	right := stage.rehearse()
	if right == nil {
		return
	}
	var plans []plan
	for _, at := range right.points {
		for _, what := range at.faults() {
			if wanted(at, what) {
				plans = append(plans, plan{faults: schedule{{what: what, at: at.point}}})
			}
		}
	}
	stage.playAll(right, plans)
}

// playInputs plays the scenario with other inputs, which must come to the same.
func playInputs(t testing.TB, s Scenario, arrange func([]Input) []Input) {
	t.Helper()
	stage := newStage(t, s)
	if right := stage.rehearse(); right != nil {
		stage.playAll(right, []plan{{inputs: arrange(stage.scenario.Inputs)}})
	}
}
