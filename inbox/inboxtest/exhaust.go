package inboxtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Exhaust plays the scenario once undisturbed, and then once for each point of that play and each
// fault that is possible there. If plays have another outcome than the undisturbed one, t fails
// with the timelines of the first three.
func Exhaust(t testing.TB, s Scenario) {
	t.Helper()
	playFaults(t, s, noAnswer, func(reached, string) bool { return true })
}

// Faults plays the scenario once undisturbed and returns the faults that Exhaust would play, in the
// form that [Replay] takes.
func Faults(t testing.TB, s Scenario) []string {
	t.Helper()
	right := newStage(t, s).rehearse()
	if right == nil {
		return nil
	}
	var all []string
	for _, at := range right.points {
		for _, what := range at.faults() {
			all = append(all, fault{what: what, at: at.point}.String())
		}
	}
	return all
}

// Pairs is [Exhaust] with a second fault in each play, at each of the calls after the first fault.
// Its duration grows with the square of the number of calls.
func Pairs(t testing.TB, s Scenario) {
	t.Helper()
	stage := newStage(t, s)
	right := stage.rehearse()
	if right == nil {
		return
	}
	var plans []plan
	for _, at := range right.points {
		for _, what := range at.faults() {
			for call := 1; call <= len(right.points); call++ {
				for _, second := range []string{crashBefore, crashAfter, loseBefore, loseAfter} {
					plans = append(plans, plan{faults: schedule{{what: what, at: at.point}, {what: second, call: call}}})
				}
			}
		}
	}
	stage.playAll(right, plans)
}

// Random plays the scenario n times with one to four random faults each. The same seed gives the same faults.
func Random(t testing.TB, s Scenario, n int, seed uint64) {
	t.Helper()
	stage := newStage(t, s)
	right := stage.rehearse()
	if right == nil {
		return
	}
	t.Logf("inboxtest: %d random plays with the seed %d", n, seed)
	dice := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // must be repeatable
	all := []string{
		crashBefore, crashAfter, loseBefore, loseAfter, failBefore, failAfter, copyAt, closeAt,
		interrupt, panicBefore, panicAfter,
	}
	plans := make([]plan, n)
	for i := range plans {
		for range 1 + dice.IntN(4) {
			plans[i].faults = append(plans[i].faults, fault{what: all[dice.IntN(len(all))], call: 1 + dice.IntN(len(right.points))})
		}
	}
	stage.playAll(right, plans)
}

// Replay plays the scenario with the faults that a failed play printed. If none of them happens, t fails: the service
// no longer makes the call.
func Replay(t testing.TB, s Scenario, faults string) {
	t.Helper()
	parsed, err := parseSchedule(faults)
	if err != nil {
		t.Fatalf("inboxtest: %v", err)
	}
	stage := newStage(t, s)
	if right := stage.rehearse(); right != nil && stage.playAll(right, []plan{{faults: parsed}}) == 0 {
		t.Errorf("inboxtest: %s: the service makes no such call: take a fault that Faults lists", faults)
	}
}

// stage runs the plays of one test.
type stage struct {
	t        testing.TB
	scenario *Scenario
	places   chan func() (*place, func(), error)
	abreast  int

	mu       sync.Mutex
	findings []finding
	reported int
}

// reference is the undisturbed play.
type reference struct {
	outcome
	points []reached
}

func newStage(t testing.TB, s Scenario) *stage {
	t.Helper()
	s.setDefaults()
	if err := s.validate(); err != nil {
		t.Fatalf("inboxtest: the scenario is invalid:\n%v", err)
	}
	st := &stage{t: t, scenario: &s}
	if len(s.Databases) == 0 {
		dir := t.TempDir()
		file, driverName, err := template(&s, dir)
		if err != nil {
			t.Fatalf("inboxtest: %v", err)
		}
		st.abreast = 8 * runtime.GOMAXPROCS(0)
		st.places = make(chan func() (*place, func(), error), st.abreast)
		for range st.abreast {
			st.places <- func() (*place, func(), error) { return sqlitePlace(&s, file, driverName, dir) }
		}
		return st
	}
	st.abreast = len(s.Databases)
	st.places = make(chan func() (*place, func(), error), st.abreast)
	for i, db := range s.Databases {
		p, err := serverPlace(t.Context(), &s, db)
		if err != nil {
			t.Fatalf("inboxtest: Scenario.Databases[%d]: %v", i, err)
		}
		t.Cleanup(func() { _ = p.plain.Close() })
		st.places <- func() (*place, func(), error) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			return p, func() {}, p.renew(ctx)
		}
	}
	return st
}

// rehearse plays the scenario undisturbed, to find its points and the right outcome.
func (st *stage) rehearse() *reference {
	st.t.Helper()
	pl, o, err := st.play(plan{})
	st.reportFindings()
	if err != nil {
		st.t.Errorf("inboxtest: the undisturbed play: %v\n%s", err, storyOf(pl))
		return nil
	}
	r := &reference{outcome: *o}
	if want := st.scenario.Want; want != nil {
		r.ledger = want
	}
	if problems := o.against(&r.outcome); len(problems) > 0 {
		st.t.Errorf("inboxtest: the undisturbed play has a wrong outcome:\n  %s\n%s",
			strings.Join(problems, "\n  "), pl.story())
		return nil
	}
	r.points = pointsOf(pl)
	return r
}

// pointsOf returns the points of a play at which faults can happen.
func pointsOf(pl *play) []reached {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(pl.reached), func(at reached) bool { return at.owner == atWork && at.nth > often })
}

// often is at how many occurrences of a background call faults happen: such calls repeat as long as
// the service runs.
const often = 2

func storyOf(pl *play) string {
	if pl == nil {
		return ""
	}
	return pl.story()
}

// plan describes one play.
type plan struct {
	faults schedule
	inputs []Input // instead of the scenario's
	encore *encore

	refusable *message.Message // one of the inputs, which the service may refuse at each delivery
}

// encore is a second round of deliveries, after everything else is done.
type encore struct {
	title  string
	note   string // in the timeline
	inputs []Input
	before func(*place) error
}

func (p plan) String() string {
	switch {
	case p.encore != nil:
		return "with " + p.encore.title + ", " + p.faults.String()
	case p.inputs == nil:
		return p.faults.String()
	}
	return "with other deliveries, " + p.faults.String()
}

// again returns how to play it once more.
func (p plan) again() string {
	if p.inputs != nil || p.encore != nil {
		return ""
	}
	return fmt.Sprintf("  play it again: inboxtest.Replay(t, scenario, %q)", p.faults)
}

// play plays a plan.
func (st *stage) play(p plan) (*play, *outcome, error) {
	enter := <-st.places
	defer func() { st.places <- enter }()
	at, leave, err := enter()
	if err != nil {
		return nil, nil, err
	}
	defer leave()
	pl := &play{place: at, scenario: st.scenario, schedule: p.faults, inputs: p.inputs, encore: p.encore, refusable: p.refusable}
	if p.inputs == nil {
		pl.inputs = st.scenario.Inputs
	}
	o, err := pl.run()
	st.mu.Lock()
	for _, f := range pl.findings {
		if !slices.ContainsFunc(st.findings, f.same) {
			st.findings = append(st.findings, f)
		}
	}
	st.mu.Unlock()
	return pl, o, err
}

// enough is the number of failed plays after which no more are played.
const enough = 12

// told is the number of failed plays that are reported in full.
const told = 3

// playAll plays every plan, compares the outcomes, and returns how many faults happened.
func (st *stage) playAll(right *reference, plans []plan) int64 {
	st.t.Helper()
	began := time.Now()
	var missed, failed, happened atomic.Int64
	failures := make([]string, len(plans))
	work := make(chan int)
	var actors sync.WaitGroup
	for range st.abreast {
		actors.Go(func() {
			for i := range work {
				pl, o, err := st.play(plans[i])
				var problems []string
				if err != nil {
					problems = []string{err.Error()}
				} else {
					problems = o.against(&right.outcome)
				}
				if pl != nil && pl.happened < len(plans[i].faults) {
					missed.Add(1)
				}
				if pl != nil {
					happened.Add(int64(pl.happened))
				}
				if len(problems) > 0 {
					failed.Add(1)
					failures[i] = fmt.Sprintf("  %s\n%s", strings.Join(problems, "\n  "), storyOf(pl))
				}
			}
		})
	}
	played := 0
	for ; played < len(plans) && failed.Load() < enough; played++ {
		work <- played
	}
	close(work)
	actors.Wait()
	st.report(plans, failures)
	if played < len(plans) {
		st.t.Errorf("inboxtest: after %d failed plays, the other %d are skipped", failed.Load(), len(plans)-played)
	}
	st.t.Logf("inboxtest: %d points, %d plays in %v; in %d of them a fault did not happen",
		len(right.points), played, time.Since(began).Round(time.Millisecond), missed.Load())
	return happened.Load()
}

// reportFindings reports each mistake in the wiring once.
func (st *stage) reportFindings() {
	st.t.Helper()
	for ; st.reported < len(st.findings); st.reported++ {
		st.t.Errorf("inboxtest: %s", st.findings[st.reported])
	}
}

func (st *stage) report(plans []plan, failures []string) {
	st.t.Helper()
	st.reportFindings()
	full := 0
	for i, failure := range failures {
		switch {
		case failure == "":
		case full < told:
			full++
			st.t.Errorf("inboxtest: %s\n%s%s", plans[i], failure, plans[i].again())
		default:
			st.t.Errorf("inboxtest: %s: failed too", plans[i])
		}
	}
}
