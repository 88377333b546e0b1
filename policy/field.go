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
	preparing     = []Strategy{Inbox, Durable, Intent}                      // whose handler runs once its transaction has begun
	versioned     = []Strategy{Gate, Latest}                                // versions of aggregates
	gated         = []Strategy{Gate}                                        // messages that wait for others
)

// meaning says for which strategies a field, or a group of them, means something. What is
// not here means something for all.
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
	"retry":              transactional,
	"order_key":          transactional,
	"on_parked":          transactional,
	"version":            versioned,
	"version.on_gap":     gated,
	"version.gap_wait":   gated,
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

// needsQueue reports whether a field means something only where messages are stored to be
// tried again.
func needsQueue(field string) bool {
	return strings.HasPrefix(field, "retry.") || field == "alerts.pending_age"
}

// strategiesOf returns for which strategies a field means something, nil if for all.
func strategiesOf(field string) []Strategy {
	if strategies, ok := meaning[field]; ok {
		return strategies
	}
	group, _, _ := strings.Cut(field, ".")
	return meaning[group]
}

// means reports whether a field means something for a strategy.
func (s Strategy) means(field string) bool {
	strategies := strategiesOf(field)
	return strategies == nil || slices.Contains(strategies, s)
}

// fields yields the fields of r under the names that they have in a file, those of a group
// as retry.attempts. What is set through them is set in r.
func (r *Rules) fields() iter.Seq2[string, reflect.Value] {
	return func(yield func(string, reflect.Value) bool) {
		eachField("", reflect.ValueOf(r).Elem(), yield)
	}
}

func eachField(prefix string, of reflect.Value, yield func(string, reflect.Value) bool) bool {
	for i := range of.NumField() {
		tag, value := of.Type().Field(i).Tag.Get("yaml"), of.Field(i)
		if tag == "" { // no file says it
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
