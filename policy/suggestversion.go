package policy

import (
	"time"

	"github.com/millrace-go/millrace/middleware/shadow"
)

// Thresholds for suggesting the ways of a gate.
const (
	numbered  = 0.5             // least share of deliveries with a version
	few       = 0.05            // share of versions
	shortWait = 5 * time.Second // how long a message may be sent back
)

// version suggests a gate where versions come in disorder.
func (s *suggesting) version() {
	v, found := s.versions()
	if !found {
		return
	}
	if v.Invalid > 0 {
		s.why("%d deliveries name a version that no gate can use: they would fail for good.", v.Invalid)
	}
	if v.Early+v.Late+v.Forgotten == 0 {
		s.why("Versions by %s came in order, each after the one before: a gate would have had nothing to do.", v.Source)
		return
	}
	s.Rules.Strategy = Gate
	if v.Source != "metadata" {
		s.Rules.Version.From = v.Source
	}
	if checkVersion(v.Source) != nil { // a name that the shadow's configuration gave it
		s.Rules.Version.From = "func:" + v.Source
		s.why("The policy knows the version %s as %s: name its function in Wiring.Versions.", v.Source, s.Rules.Version.From)
	}
	if v.Missing > 0 {
		s.Rules.Version.Sequence = SequenceOptional
		s.why("%d deliveries name no version and would pass the gate.", v.Missing)
	}
	s.gap(v)
}

// versions returns the source that gives most deliveries a version, if it gives enough of them one.
func (s *suggesting) versions() (best shadow.VersionRates, found bool) {
	for _, v := range s.of.Versions {
		has := share(s.of.Deliveries-v.Missing-v.Invalid, s.of.Deliveries)
		if v.Deliveries() > 0 && has >= numbered && (!found || v.Missing+v.Invalid < best.Missing+best.Invalid) {
			best, found = v, true
		}
	}
	return best, found
}

// first lets aggregates begin where they are: a gate that begins on a live stream does not know
// what was applied before.
func (s *suggesting) first(v shadow.VersionRates) {
	s.Rules.Version.First = FirstSeen
	word, from := FirstIsOne, v.FromOne
	if v.FromZero > v.FromOne {
		word, from = FirstIsZero, v.FromZero
	}
	s.why("The gate does not know what was applied before it, so an aggregate begins with what comes first. Where all is applied anew, "+
		"write first: %s: with that version %d of %d aggregates began.", word, from, v.Aggregates)
}

// gap suggests what to do with a message that comes too early.
func (s *suggesting) gap(v shadow.VersionRates) {
	s.why("%s of the versions came early and %s late, by up to %s; a gate that holds would have held %s.",
		percent(share(v.Early, v.Deliveries())), percent(share(v.Late, v.Deliveries())), about(v.Waits.Longest),
		percent(share(v.Held, v.Deliveries())))
	came := float64(v.First + v.InOrder + v.Early + v.Late)
	lost := v.Open > 0 && v.OpenFor > max(2*v.Waits.Longest, time.Minute)
	switch {
	case lost && float64(v.Open)/(came+float64(v.Open)) > few:
		s.Rules.Strategy = Latest
		s.why("%d versions never came, which is more than a few: these numbers have holes, and a gate would hold nearly everything. "+
			"Latest is right if each message brings the whole state; else the producer must number without holes.", v.Open)
		return
	case lost:
		s.why("Missing versions: %d, the longest for %s. A gate would hold the versions after them, and park them in the end: find out where the missing ones are.",
			v.Open, about(v.OpenFor))
	case v.Waits.Longest <= shortWait && share(v.Held, v.Deliveries()) <= few && s.of.AtOnce > 1:
		s.Rules.Version.OnGap = GapFail
		s.why("Gaps are few and short, and the source has several messages in flight: what comes early is sent back, and nothing is stored. " +
			"Write on_gap: hold if the source is to have one message in flight.")
	}
	s.first(v)
	s.bounds(v)
}

// bounds suggests limits for held messages where the defaults may be too low.
func (s *suggesting) bounds(v shadow.VersionRates) {
	const defaultHeld, defaultHeldFor = 1000, 24 * time.Hour
	if s.Rules.Version.OnGap == GapFail {
		return
	}
	if v.Overtaken.Most > defaultHeld/2 && v.Overtaken.Most < most/2 {
		s.Rules.Version.MaxHeld = int(2 * v.Overtaken.Most)
	}
	if v.Waits.Longest > defaultHeldFor/2 {
		s.Rules.Version.HeldFor = Duration(roundedUp(2 * v.Waits.Longest))
	}
}
