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

// ReplaySameID delivers all messages again after all were handled.
func ReplaySameID(t testing.TB, s Scenario) {
	t.Helper()
	playInputs(t, s, func(inputs []Input) []Input { return slices.Concat(inputs, inputs) })
}

// ExpiredRetention delivers all messages again after the inbox has handled and forgotten them, as
// after its retention. The inbox recognizes and parks a message that is too old only if the message
// carries its time; it handles others again. So give the messages a time of yesterday, for
// instance in ce_time. A consumer with inbox.Forever forgets none.
func ExpiredRetention(t testing.TB, s Scenario) {
	t.Helper()
	stage := newStage(t, s)
	right := stage.rehearse()
	if right == nil {
		return
	}
	late := plan{encore: &encore{
		title: "copies after the retention", note: "the retention is over, and all messages are delivered again",
		inputs: stage.scenario.Inputs, before: (*place).expire,
	}}
	pl, o, err := stage.play(late)
	if err == nil {
		o.open = right.open // parked copies are expected
		if problems := o.against(&right.outcome); len(problems) > 0 {
			err = errors.New(strings.Join(problems, "\n  "))
		}
	}
	if err != nil {
		stage.report([]plan{late}, []string{"  " + err.Error() + "\n" + storyOf(pl)})
	}
}

// OffsetReset delivers all messages from the first on again, each time that one was handled.
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

// OldVersion delivers each message once more after all others: a version below that of its
// aggregate.
func OldVersion(t testing.TB, s Scenario) {
	t.Helper()
	for n := range s.Inputs {
		playInputs(t, s, func(inputs []Input) []Input { return append(slices.Clone(inputs), inputs[n]) })
	}
}

// FutureVersion delivers each message before the one that precedes it: a version whose
// predecessor has not come yet.
func FutureVersion(t testing.TB, s Scenario) {
	t.Helper()
	if len(s.Inputs) < 2 {
		t.Errorf("inboxtest: nothing to try: Inputs has fewer than two messages: add one, or leave this check out")
	}
	for n := 1; n < len(s.Inputs); n++ {
		playInputs(t, s, func(inputs []Input) []Input {
			swapped := slices.Clone(inputs)
			swapped[n-1], swapped[n] = swapped[n], swapped[n-1]
			return swapped
		})
	}
}

// HeldThenReleased delivers the messages in reverse order, with a crash at each point. If the
// service holds versions, some of the crashes happen while held messages are released.
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

// Collision delivers each message once more with its id but another payload, longer by a blank. The
// service must refuse it or store it for an operator: it may neither handle nor silently ack it. A
// copy that is refused at each delivery may leave nothing behind either.
func Collision(t testing.TB, s Scenario) {
	t.Helper()
	stage := newStage(t, s)
	right := stage.rehearse()
	if right == nil {
		return
	}
	for i, in := range s.Inputs {
		forged := in.Message.Copy()
		forged.Payload = append(slices.Clone(forged.Payload), ' ') // most handlers can still decode it
		forgery := plan{inputs: append(slices.Clone(s.Inputs), Input{Topic: in.Topic, Message: forged}), refusable: forged}
		pl, o, err := stage.play(forgery)
		if err != nil {
			t.Errorf("inboxtest: input %d with another payload: %v\n%s", i+1, err, storyOf(pl))
			continue
		}
		silent := slices.Equal(o.open, right.open) && !pl.broker.gaveUp(forged)
		o.open = right.open
		problems := o.against(&right.outcome)
		if silent {
			problems = append(problems, "I7: the other payload was acked, and nothing reports it")
		}
		for _, p := range problems {
			t.Errorf("inboxtest: input %d with another payload: %s\n%s", i+1, p, pl.story())
		}
	}
	stage.reportFindings()
}

// ConcurrentCopies gives each message to another process too, at each point of its handling.
func ConcurrentCopies(t testing.TB, s Scenario) {
	t.Helper()
	playFaults(t, s, noCalls, func(at reached, what string) bool { return what == copyAt })
}

// Rebalance gives each message to another process, at each point of its handling, and closes
// the process that is handling it.
func Rebalance(t testing.TB, s Scenario) {
	t.Helper()
	playFaults(t, s, noCalls, func(at reached, what string) bool { return what == copyAt }, fault{what: closeAt, call: 1})
}

// CrashBeforeCommit kills the process before each commit.
func CrashBeforeCommit(t testing.TB, s Scenario) {
	t.Helper()
	playFaults(t, s, noCommit, func(at reached, what string) bool { return at.kind == commit && what == crashBefore })
}

// CrashAfterCommit kills the process after each commit, and loses the answer to each commit.
func CrashAfterCommit(t testing.TB, s Scenario) {
	t.Helper()
	playFaults(t, s, noCommit, func(at reached, what string) bool {
		return at.kind == commit && (what == crashAfter || what == loseAfter)
	})
}

// InterruptedStatement ends the context of each statement while the statement runs, like a query
// with a deadline of its own. SQLite then rolls back the whole transaction.
func InterruptedStatement(t testing.TB, s Scenario) {
	t.Helper()
	playFaults(t, s, noStatement, func(_ reached, what string) bool { return what == interrupt })
}

// Panics makes the handler panic, at its beginning and at its end, and each callback that calls
// [Process.Callback].
func Panics(t testing.TB, s Scenario) {
	t.Helper()
	playFaults(t, s, noHandler, func(_ reached, what string) bool { return what == panicBefore || what == panicAfter })
}

// SideEffectThenCrash kills the process after each message that it published and each call
// of [Process.External].
func SideEffectThenCrash(t testing.TB, s Scenario) {
	t.Helper()
	playFaults(t, s, noEffect, func(at reached, what string) bool {
		return (at.kind == publish || at.kind == external) && what == crashAfter
	})
}

// StaleClaim kills the process at each point between the delivery of a message and its ack. The
// claims and locks that the process held must not keep the message from being handled.
func StaleClaim(t testing.TB, s Scenario) {
	t.Helper()
	playFaults(t, s, noAnswer, func(at reached, what string) bool {
		return at.owner != atWork && (what == crashBefore || what == crashAfter)
	})
}

// What a check says that finds no call to disturb.
const (
	noCalls     = "the service makes no call for a message: have it use the DB and the Publisher of its Process, and Process.External, with the context of the message"
	noCommit    = "the service commits no transaction for a message: have it write in one, with the context of the message, or try StaleClaim instead"
	noStatement = "the service runs no statement in a transaction for a message: have it write in one, with the context of the message, or leave this check out"
	noHandler   = "no handler runs: have the service handle what is in Inputs"
	noEffect    = "the service publishes nothing, and makes no call by Process.External: make its calls to the outside there, or leave this check out"
	noAnswer    = "the service answers no message"
)

// playFaults plays those faults of Exhaust that are wanted, each followed by others. If no call of the service allows them, t fails
// and says what is missing. Statements of background work do not count; those of a message that a queue delivers do, though the
// queue may rule the fault out.
func playFaults(t testing.TB, s Scenario, missing string, wanted func(at reached, what string) bool, others ...fault) {
	t.Helper()
	stage := newStage(t, s)
	right := stage.rehearse()
	if right == nil {
		return
	}
	var plans []plan
	some := false
	for _, at := range right.points {
		for _, what := range faultsOf[at.kind] {
			if !wanted(at, what) {
				continue
			}
			some = some || at.owner != atWork || at.kind == publish || at.kind == external
			if slices.Contains(at.faults(), what) {
				plans = append(plans, plan{faults: append(schedule{{what: what, at: at.point}}, others...)})
			}
		}
	}
	if !some {
		t.Errorf("inboxtest: nothing to try: %s", missing)
	}
	stage.playAll(right, plans)
}

// playInputs plays the scenario with other inputs, which must have the same outcome.
func playInputs(t testing.TB, s Scenario, arrange func([]Input) []Input) {
	t.Helper()
	stage := newStage(t, s)
	if right := stage.rehearse(); right != nil {
		stage.playAll(right, []plan{{inputs: arrange(stage.scenario.Inputs)}})
	}
}
