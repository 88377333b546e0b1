package policy

import (
	"fmt"
	"reflect"
	"strings"
	"time"
)

// Setting is one setting that applies to a handler.
type Setting struct {
	// Field is its name in a policy file, such as retry.attempts. The last one, queue, is not a
	// field: it says that the handler's subscriber must come from Wired.Subscriber.
	Field string

	// Value is the value that applies.
	Value string

	// From says where the value comes from: consumers.NAME or defaults, if the policy sets it; the
	// field that implies it; or default, for Millrace's own.
	From string
}

// Explain returns the settings of a handler, and where each comes from, in the order of the fields
// of Rules. It leaves out settings that the handler's strategy does not use, and those that are not
// set and have no default. It returns nil if the policy does not name the handler and is strict.
func (p Policy) Explain(handler string) []Setting {
	rules, ok := p.For(handler)
	if !ok {
		return nil
	}
	own := p.Consumers[handler]
	said, builtin := fieldValues(&own), fieldValues(rules.builtin(handler))
	why, queued := rules.queued()
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
		if s.Value = text(value); s.Value == "" {
			continue
		}
		if name == "collision" && queued && s.Value != string(CollisionPark) {
			s.Value += ", but park while the other message is stored"
		}
		settings = append(settings, s)
	}
	if queued {
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

// text returns a value as a person reads it, empty if it is not set.
func text(value reflect.Value) string {
	if value.Kind() == reflect.Pointer && !value.IsNil() {
		value = value.Elem()
	} else if value.IsZero() {
		return ""
	}
	return fmt.Sprint(value.Interface())
}

// builtin returns the middlewares' defaults for what r leaves out.
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

// function reports whether a function makes k, or a part of it.
func (k Key) function() bool {
	for part := range strings.SplitSeq(k.From, "+") {
		if kind, _, _ := strings.Cut(strings.TrimSpace(part), ":"); kind == "func" {
			return true
		}
	}
	return false
}

// own reports whether k is the message's own id.
func (k Key) own() bool {
	for part := range strings.SplitSeq(k.From, "+") {
		switch strings.TrimSpace(part) {
		case "", "uuid", "cloudevent":
			return true
		}
	}
	return false
}
