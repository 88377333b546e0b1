package policy

import (
	"reflect"
	"strings"
)

// For returns the rules of a handler with every field that they leave out taken from Defaults; Key
// is one field. It leaves out a field of Defaults for which the handler's strategy or its other
// settings have no use, such as one that needs a queue where there is none. Strategy and Replay are always set; any other field left zero
// means the middleware's default.
//
// For reports false if the policy does not name the handler and is strict.
func (p Policy) For(handler string) (Rules, bool) {
	rules, named := p.Consumers[handler]
	if !named && p.Strict {
		return Rules{}, false
	}
	return rules.or(p.Defaults), true
}

// or returns r with the fields of defaults wherever r has none.
func (r Rules) or(defaults Rules) Rules {
	if r.Strategy == "" {
		r.Strategy = defaults.Strategy
	}
	if r.Strategy == "" {
		r.Strategy = Inbox
	}
	if r.Ack == "" && r.Strategy.means("ack") { // the fields of Version depend on it
		r.Ack = defaults.Ack
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
		if r.idle(name) { // the other fields that it depends on come first
			continue
		}
		value.Set(values[name])
	}
	if r.Replay == "" {
		r.Replay = r.replay()
	}
	return r
}

// replay returns the default of Replay: refuse if a second effect would do harm.
func (r Rules) replay() Replay {
	if r.SideEffects == AcceptDuplicates {
		return ReplayRefuse
	}
	return ReplayAllow
}

// queued reports whether a handler needs a durable subscriber, and why.
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
