package policy

import (
	"reflect"
	"strings"
)

// For returns what applies to a handler: its rules, and where those say nothing, Defaults,
// field by field; Key is one field. A field of Defaults that means nothing for the handler's
// strategy, or without a queue, does not apply. Strategy and Replay are always set; what else is left zero is
// the default of the middleware.
//
// It reports false if the policy does not name the handler and is strict.
func (p Policy) For(handler string) (Rules, bool) {
	rules, named := p.Consumers[handler]
	if !named && p.Strict {
		return Rules{}, false
	}
	return rules.or(p.Defaults), true
}

// or returns r with the fields of defaults where it has none.
func (r Rules) or(defaults Rules) Rules {
	if r.Strategy == "" {
		r.Strategy = defaults.Strategy
	}
	if r.Strategy == "" {
		r.Strategy = Inbox
	}
	ownKey, ownFormer := r.Key != Key{}, r.FormerKey != Key{}
	values := make(map[string]reflect.Value)
	for name, value := range defaults.fields() {
		values[name] = value
	}
	for name, value := range r.fields() {
		if !value.IsZero() || !r.Strategy.means(name) ||
			ownKey && strings.HasPrefix(name, "key.") || ownFormer && strings.HasPrefix(name, "former_key.") {
			continue
		}
		if needsQueue(name) && !r.queues() { // what that depends on stands before it
			continue
		}
		value.Set(values[name])
	}
	if r.Replay == "" {
		r.Replay = r.replay()
	}
	return r
}

// replay is what happens to a replayed message where nobody has said it: a second effect
// that nobody keeps from happening is refused.
func (r Rules) replay() Replay {
	if r.SideEffects == AcceptDuplicates {
		return ReplayRefuse
	}
	return ReplayAllow
}

// queued returns what makes a handler need a durable subscriber, and reports whether it does.
func (r Rules) queued() (why string, is bool) {
	switch {
	case r.Shadow || !r.Strategy.means("ack"):
		return "", false
	case r.Strategy == Durable:
		return "strategy: durable", true
	case r.Strategy == Gate && r.Version.OnGap != GapFail:
		return "strategy: gate with on_gap: hold", true
	case r.Ack == AckStored:
		return "ack: stored", true
	}
	return "", false
}
