package policy

import (
	"fmt"
	"reflect"
	"strings"
	"time"
)

// Setting is one thing that applies to a handler.
type Setting struct {
	// Field is its name, as in a file: retry.attempts. The last one, queue, is no field: it
	// says that the handler's subscriber must be Wired.Subscriber's.
	Field string

	// Value is what applies.
	Value string

	// From says why: consumers.NAME or defaults, where a policy says it; the field that brings it
	// with it; or default, of Millrace.
	From string
}

// Explain returns what applies to a handler, and why, in the order of the fields of Rules.
// What means nothing for the handler's strategy, or is not set and has no default, is left
// out. It returns nil if the policy does not name the handler and is strict.
func (p Policy) Explain(handler string) []Setting {
	rules, ok := p.For(handler)
	if !ok {
		return nil
	}
	own := p.Consumers[handler]
	said, builtin := fieldValues(&own), fieldValues(rules.builtin(handler))
	var settings []Setting
	for name, value := range rules.fields() {
		if !rules.Strategy.means(name) {
			continue
		}
		s := Setting{Field: name, From: "defaults"}
		switch {
		case !said[name].IsZero():
			s.From = "consumers." + handler
		case name == "replay" && p.Defaults.Replay == "" && rules.Replay == ReplayRefuse:
			s.From = "side_effects: " + string(rules.SideEffects)
		case value.IsZero(), name == "replay" && p.Defaults.Replay == "", name == "strategy" && p.Defaults.Strategy == "":
			s.From, value = "default", builtin[name]
		}
		if s.Value = text(value); s.Value != "" {
			settings = append(settings, s)
		}
	}
	if why, is := rules.queued(); is {
		settings = append(settings, Setting{Field: "queue", Value: "required", From: why})
	}
	return settings
}

func fieldValues(r *Rules) map[string]reflect.Value {
	values := make(map[string]reflect.Value)
	for name, value := range r.fields() {
		values[name] = value
	}
	return values
}

// text is how a person reads a value; nothing for one that is not set.
func text(value reflect.Value) string {
	if value.Kind() == reflect.Pointer && !value.IsNil() {
		value = value.Elem()
	} else if value.IsZero() {
		return ""
	}
	return fmt.Sprint(value.Interface())
}

// builtin returns what the middlewares do where r says nothing.
func (r Rules) builtin(handler string) *Rules {
	b := &Rules{
		Strategy: Inbox, Consumer: handler, Key: Key{From: "uuid"}, Retention: 7 * 24 * Duration(time.Hour),
		Ack: AckCommit, Timeout: 25 * Duration(time.Second), Replay: ReplayAllow, SideEffects: NoSideEffects,
		Collision: CollisionDrop,
		Version: Version{
			From: "metadata", Sequence: SequenceRequired, OnGap: GapHold, First: FirstIsOne,
			MaxHeld: 1000, HeldFor: 24 * Duration(time.Hour),
		},
	}
	if _, is := r.queued(); is {
		b.Retry = Retry{Attempts: 10, Backoff: Duration(time.Second), MaxBackoff: 5 * Duration(time.Minute)}
	}
	if r.OrderKey != "" {
		b.OnParked = HoldKey
	}
	if r.holdsNone() {
		b.Version.MaxHeld, b.Version.HeldFor, b.Version.GapFor = 0, 0, Duration(time.Minute)
	}
	switch {
	case r.Key.own():
		b.Collision = CollisionPark
	case r.Key.function():
		b.Collision = "park if the key is the message's own id, else drop"
	}
	return b
}

// function reports whether k is made by a function, alone or with others.
func (k Key) function() bool {
	for part := range strings.SplitSeq(k.From, "+") {
		if kind, _, _ := strings.Cut(strings.TrimSpace(part), ":"); kind == "func" {
			return true
		}
	}
	return false
}

// own reports whether k is the message's own id, whatever functions it names.
func (k Key) own() bool {
	for part := range strings.SplitSeq(k.From, "+") {
		switch strings.TrimSpace(part) {
		case "", "uuid", "cloudevent":
			return true
		}
	}
	return false
}
