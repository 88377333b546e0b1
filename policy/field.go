package policy

import (
	"iter"
	"reflect"
	"slices"
	"strings"
)

// Strategies by what they have.
var (
	remembering   = []Strategy{Dedup, Inbox, Durable, Intent, Gate, Latest} // a memory of messages
	transactional = []Strategy{Inbox, Durable, Intent, Gate, Latest}        // the inbox's transaction
	preparing     = []Strategy{Inbox, Durable, Intent}                      // a handler that runs once its transaction has begun
	versioned     = []Strategy{Gate, Latest}                                // versions of aggregates
	gated         = []Strategy{Gate}                                        // messages that wait for others
)

// meaning lists the strategies that use a field or a group of fields. All strategies use a field
// that is not listed.
var meaning = map[string][]Strategy{
	"store":              remembering,
	"consumer":           remembering,
	"epoch":              remembering,
	"key":                remembering,
	"former_key":         preparing,
	"retention":          remembering,
	"window":             remembering,
	"timeout":            transactional,
	"collision":          transactional,
	"ack":                transactional,
	"journal":            transactional,
	"batch":              transactional,
	"retry":              transactional,
	"order_key":          transactional,
	"on_parked":          transactional,
	"version":            versioned,
	"version.first":      gated,
	"version.on_gap":     gated,
	"version.gap_for":    gated,
	"version.max_held":   gated,
	"version.held_for":   gated,
	"alerts":             remembering,
	"alerts.pending_age": transactional,
	"alerts.failures":    transactional,
	"alerts.parked":      transactional,
	"alerts.held_age":    gated,
	"alerts.gaps":        versioned,
}

// needsQueue reports whether a field has a use only where a queue stores messages to try them
// again.
func needsQueue(field string) bool {
	return strings.HasPrefix(field, "retry.") || field == "alerts.pending_age"
}

// idle reports whether the other settings of r leave a field without a use that its strategy has.
func (r Rules) idle(field string) bool {
	switch field {
	case "version.max_held", "version.held_for", "alerts.held_age":
		return r.holdsNone()
	case "version.gap_for":
		return !r.holdsNone()
	case "on_parked":
		return r.OrderKey == ""
	}
	return needsQueue(field) && !r.queues()
}

// strategiesOf returns the strategies that use a field, nil for all.
func strategiesOf(field string) []Strategy {
	if strategies, ok := meaning[field]; ok {
		return strategies
	}
	group, _, _ := strings.Cut(field, ".")
	return meaning[group]
}

// means reports whether a strategy uses a field.
func (s Strategy) means(field string) bool {
	strategies := strategiesOf(field)
	return strategies == nil || slices.Contains(strategies, s)
}

// fields yields the fields of r under their names in a file; a field in a group is called
// retry.attempts. Setting a yielded value sets the field of r.
func (r *Rules) fields() iter.Seq2[string, reflect.Value] {
	return func(yield func(string, reflect.Value) bool) {
		eachField("", reflect.ValueOf(r).Elem(), yield)
	}
}

func eachField(prefix string, of reflect.Value, yield func(string, reflect.Value) bool) bool {
	for i := range of.NumField() {
		tag, value := of.Type().Field(i).Tag.Get("yaml"), of.Field(i)
		if tag == "" { // not in files
			continue
		}
		name := prefix + tag
		if value.Kind() == reflect.Struct {
			if !eachField(name+".", value, yield) {
				return false
			}
			continue
		}
		if !yield(name, value) {
			return false
		}
	}
	return true
}
