package policy

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/middleware/shadow"
)

// tolerable is the share of deliveries without a key, or with a colliding key, that may be the
// producer's fault rather than the key's.
const tolerable = 0.01

// key chooses the key that recognises the most copies, among those that messages have and that
// different messages do not share. Of equals it chooses the first.
func (s *suggesting) key() (best shadow.KeyRates, found bool) {
	for _, k := range s.of.Keys {
		missing, collisions := share(k.Missing, s.of.Deliveries), share(k.Collisions, k.Deliveries)
		switch {
		case k.Key == "payload" || missing > 1-tolerable:
		case collisions > tolerable:
			s.why("%s is not a key: %s of the deliveries have the value of a message with another payload.", from(k.Key), percent(collisions))
		case missing > tolerable:
			s.why("%s is not a key: %s of the deliveries do not have it.", from(k.Key), percent(missing))
		case !found:
			best, found = k, true
		default:
			if more := share(k.Duplicates, k.Deliveries) - share(best.Duplicates, best.Deliveries); more > margin(k, best) {
				s.why("%s recognises %s more of the deliveries as copies than %s does.", from(k.Key), percent(more), from(best.Key))
				best = k
			}
		}
	}
	if !found {
		s.why("None of the keys that were tried will do: add another to shadow.Config.Keys.")
		return best, false
	}
	s.Rules.Key = written(best.Key)
	switch {
	case best.Missing == 0 || s.Rules.Key.Optional:
	case best.Key == "uuid":
		s.why("%d deliveries have no UUID, and would fail.", best.Missing)
	default:
		s.Rules.Key.Optional = true
		s.why("%d deliveries do not have %s and are known by their UUID.", best.Missing, from(best.Key))
	}
	s.named(best.Key)
	return best, true
}

// margin returns the difference between two shares that means nothing: none if every message was
// watched, else what samples of some thousands differ by.
func margin(a, b shadow.KeyRates) float64 {
	if a.Sample < 1 || b.Sample < 1 {
		return 0.02
	}
	return 0
}

// collision parks colliding messages where the default could be to drop them.
func (s *suggesting) collision(key shadow.KeyRates) {
	if key.Collisions == 0 {
		return
	}
	s.Rules.Collision = CollisionPark
	s.why("%d deliveries have the %s, but not the payload, of another message. They are parked, so that none is lost: see what they are, "+
		"and write collision: drop if they may go.", key.Collisions, from(key.Key))
}

// from returns a key as a policy names it.
func from(key string) string { return written(key).From }

// written returns a key as a policy writes it: a function if a policy has no words for it.
func written(key string) Key {
	rest, optional := strings.CutPrefix(key, "first(")
	if optional {
		rest, optional = strings.CutSuffix(rest, ",uuid)")
	}
	if !optional {
		rest = key
	}
	k := Key{Optional: optional}
	for _, within := range withins {
		if inner, is := strings.CutSuffix(rest, "/"+within); is {
			rest, k.Within = inner, within
		}
	}
	if inner, is := strings.CutPrefix(rest, "joined("); is {
		rest = betweenKeys.ReplaceAllString(strings.TrimSuffix(inner, ")"), "+$1")
	}
	k.From = quotedText.ReplaceAllStringFunc(rest, func(text string) string {
		if plain, err := strconv.Unquote(text); err == nil {
			return plain
		}
		return text
	})
	// A name may contain our syntax, so parsing the text must give the key again.
	again, err := k.inboxKey(func(name string) (inbox.Key, error) { return inbox.ByFunc(name, nil), nil })
	if err != nil || again.String() != key {
		return Key{From: "func:KEY"}
	}
	return k
}

var (
	quotedText  = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)
	betweenKeys = regexp.MustCompile(`,(uuid|payload|cloudevent|metadata:|json:|func:)`)
)

// named says which functions a key needs.
func (s *suggesting) named(key string) {
	if k := written(key); k.function() {
		s.why("The policy knows the key %s as %s: name its functions in Wiring.Keys.", key, k.From)
	}
}
