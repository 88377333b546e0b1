package policy

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/millrace-go/millrace/middleware/shadow"
)

// Suggestion holds rules for a consumer that the report on it supports, and the reasons. It is a
// starting point: no report knows what effects a handler has, or how long its source may redeliver.
type Suggestion struct {
	Consumer string
	Rules    Rules
	Why      []string // each a sentence or two
}

// Suggest returns rules that the report on a consumer supports: its key, how long copies may be
// apart, and whether its versions need a gate. It leaves out rules that equal the default.
func Suggest(c shadow.Consumer) Suggestion {
	s := suggesting{Suggestion: Suggestion{Consumer: c.Name, Rules: Rules{Strategy: Inbox}}, of: c}
	if c.Deliveries < enough || c.Watched < 24*time.Hour {
		s.why("Only %d deliveries of %s were seen: watch for longer, a day and some thousand at least.", c.Deliveries, about(c.Watched))
	}
	if key, found := s.key(); found {
		s.collision(key)
		s.window(key)
		s.payload(key)
	}
	s.version()
	return s.Suggestion
}

// enough is the number of deliveries from which a report is meaningful.
const enough = 1000

// suggesting is a Suggestion in the making.
type suggesting struct {
	Suggestion
	of shadow.Consumer
}

func (s *suggesting) why(format string, args ...any) {
	s.Why = append(s.Why, fmt.Sprintf(format, args...))
}

// window suggests twice the longest time between two copies.
func (s *suggesting) window(key shadow.KeyRates) {
	const least = time.Hour
	window := roundedUp(max(least, 2*min(key.Apart.Longest, math.MaxInt64/4)))
	s.Rules.Window = Duration(window)
	if window > 7*day {
		s.Rules.Retention = Duration(window)
	}
	if key.Copied == 0 {
		s.why("No copy was seen, so the window of %s is the least.", s.Rules.Window)
	} else {
		s.why("Copies came up to %s apart, 99 %% of them within %s; the window is twice that, and an hour at least.",
			about(key.Apart.Longest), about(key.Apart.P99))
	}
	s.why("It watched for %s and has not seen what comes later: compare the window with what the broker may redeliver, and "+
		"with the age of what a dead-letter queue or a replay brings back.", about(s.of.Watched))
}

// payload explains equal payloads under different keys.
func (s *suggesting) payload(key shadow.KeyRates) {
	for _, k := range s.of.Keys {
		if more := share(k.Duplicates, k.Deliveries) - share(key.Duplicates, key.Deliveries); k.Key == "payload" && more > margin(k, key) {
			s.why("%s of the deliveries have the payload of an earlier one, but another %s. They are sent again under another id, or they are "+
				"different messages that look alike: find out which before you take the payload or another field for the key.",
				percent(more), from(key.Key))
		}
	}
	if key.Concurrent > 0 {
		s.why("%d deliveries came while the handler ran for another one with their key: a look before the effect does not stop those, "+
			"a claim does.", key.Concurrent)
	}
}

// roundedUp rounds as a person would: to whole hours, and from two days on to whole days.
func roundedUp(d time.Duration) time.Duration {
	unit := time.Hour
	if d > 2*day {
		unit = day
	}
	return (d + unit - 1).Truncate(unit)
}

// about rounds d to two or three digits.
func about(d time.Duration) Duration {
	for _, unit := range []time.Duration{day, time.Hour, time.Minute, time.Second} {
		if d >= 10*unit {
			return Duration(d.Round(unit))
		}
	}
	return Duration(d.Round(time.Millisecond))
}

func share(n, all int) float64 {
	if all == 0 {
		return 0
	}
	return float64(n) / float64(all)
}

func percent(share float64) string { return strings.TrimSpace(fmt.Sprintf("%.2g %%", 100*share)) }
