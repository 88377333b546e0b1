package policy

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Check returns everything that is wrong with p on its own as [Problems], or nil: impossible
// values, contradictions, and settings that would lose or repeat an effect. What depends on the
// router, such as the names of its handlers, is checked when the router starts.
func (p Policy) Check() error { return p.problems(nil).sorted() }

// problems returns what is wrong with p, but reports nothing that follows from a broken field.
func (p Policy) problems(broken map[string]bool) Problems {
	c := &checker{policy: p, broken: broken, wild: make(map[string]bool)}
	c.ranges("defaults", p.Defaults)
	c.defaults()
	if !p.Strict {
		c.together("defaults", Rules{}, Rules{}.or(p.Defaults))
	}
	for _, handler := range slices.Sorted(maps.Keys(p.Consumers)) {
		rules, path := p.Consumers[handler], below("consumers", handler)
		c.name(path, "the handler's name", handler)
		c.ranges(path, rules)
		c.meaningless(path, rules)
		c.hidden(path, rules)
		applies, _ := p.For(handler)
		c.together(path, rules, applies)
	}
	c.shared()
	return c.found
}

// checker collects problems.
type checker struct {
	policy Policy
	broken map[string]bool // fields that could not be read, and were reported then
	wild   map[string]bool // fields whose value is out of range
	found  Problems
}

func (c *checker) problem(path, format string, args ...any) {
	if c.isBroken(path) {
		return
	}
	file, line := c.policy.from.at(path)
	c.found = append(c.found, Problem{file, line, path, fmt.Sprintf(format, args...)})
}

// isBroken reports whether a field, or a group that contains it, could not be read.
func (c *checker) isBroken(path string) bool {
	for at := path; ; {
		if c.broken[at] && (at != "" || path == "") {
			return true
		}
		up := strings.LastIndexByte(at, '.')
		if up < 0 {
			return false
		}
		at = at[:up]
	}
}

// meaningless reports fields of a consumer that its strategy does not use.
func (c *checker) meaningless(path string, rules Rules) {
	strategy := rules.or(c.policy.Defaults).Strategy
	if c.isBroken(path+".strategy") || rules.Strategy == "" && c.isBroken("defaults.strategy") {
		return
	}
	for name, value := range rules.fields() {
		if !value.IsZero() && !strategy.means(name) {
			c.problem(path+"."+name, "means nothing with strategy %s%s", strategy, wayTo(name))
		}
	}
}

// wayTo returns advice on what to change so that a field has a use.
func wayTo(name string) string {
	allowed := either(texts(strategiesOf(name)...))
	switch name {
	case "timeout":
		return ", which has no transaction to bound: use Watermill's Timeout in the handler's middlewares, or take strategy " + allowed
	case "collision":
		return ", which compares no payloads: leave it out, or take strategy " + allowed
	case "ack", "order_key", "on_parked", "retry.attempts", "retry.backoff", "retry.max_backoff":
		return ", which stores no messages: leave it out, or take strategy durable"
	}
	return ": leave it out, or take strategy " + allowed
}

// hidden reports fields that a consumer sets to their zero value, so that the value of Defaults
// applies.
func (c *checker) hidden(path string, rules Rules) {
	if c.policy.from == nil {
		return
	}
	applies := rules.or(c.policy.Defaults)
	values := make(map[string]reflect.Value)
	for name, value := range applies.fields() {
		values[name] = value
	}
	for name, value := range rules.fields() {
		_, written := c.policy.from.lines[path+"."+name]
		if written && value.IsZero() && !values[name].IsZero() {
			c.problem(path+"."+name, "%v is as if it were left out, so the %v of defaults applies: take it out of defaults, "+
				"and write it where it shall apply", value.Interface(), values[name].Interface())
		}
	}
}

// defaults reports fields that cannot have a default, and defaults that no consumer uses.
func (c *checker) defaults() {
	d := c.policy.Defaults
	if d.Consumer != "" {
		c.problem("defaults.consumer", "two handlers with one name would take each other's messages for duplicates: "+
			"write it below the consumers that need it")
	}
	if c.policy.Strict && len(c.policy.Consumers) == 0 {
		c.problem("strict", "is true, but consumers has no handler, so all would be refused: name them, or leave strict out")
		return
	}
	if c.strategyBroken() {
		return
	}
	used := c.used()
	for name, value := range d.fields() {
		switch {
		case value.IsZero() || used[name]:
		case needs(name) != "" && c.anyMeans(name):
			c.problem("defaults."+name, "%s", needs(name))
		default:
			c.problem("defaults."+name, "no consumer has a strategy for which it means something: leave it out, or take strategy %s",
				either(texts(strategiesOf(name)...)))
		}
	}
}

// needs says what a default needs besides a strategy, so that some consumer has a use for it.
func needs(name string) string {
	switch name {
	case "version.max_held", "version.held_for", "alerts.held_age":
		return "no consumer stores a message to wait for another: leave it out, or take on_gap: hold"
	case "version.gap_for":
		return "no consumer returns a message to its source at a gap: leave it out, or write on_gap: fail"
	case "on_parked":
		return "no consumer has an order_key, so no message waits behind a parked one: write one, or leave it out"
	}
	if needsQueue(name) {
		return "no consumer keeps messages that failed: leave it out, or take strategy durable, or ack: stored"
	}
	return ""
}

// strategyBroken reports whether a strategy, or a field on which the use of others depends, could
// not be read.
func (c *checker) strategyBroken() bool {
	paths := []string{"defaults"}
	for handler := range c.policy.Consumers {
		paths = append(paths, below("consumers", handler))
	}
	return slices.ContainsFunc(paths, func(path string) bool {
		return c.isBroken(path+".strategy") || c.isBroken(path+".ack") || c.isBroken(path+".version.on_gap") ||
			c.isBroken(path+".order_key")
	})
}

// applying returns the rules of each consumer, and those of the handlers that are not named.
func (c *checker) applying() (all []Rules) {
	if !c.policy.Strict {
		all = append(all, Rules{}.or(c.policy.Defaults))
	}
	for _, rules := range c.policy.Consumers {
		all = append(all, rules.or(c.policy.Defaults))
	}
	return all
}

// used returns the fields that some consumer uses.
func (c *checker) used() map[string]bool {
	used := make(map[string]bool)
	for _, rules := range c.applying() {
		for name, value := range rules.fields() {
			used[name] = used[name] || !value.IsZero()
		}
	}
	return used
}

// anyMeans reports whether some consumer's strategy uses a field.
func (c *checker) anyMeans(name string) bool {
	return slices.ContainsFunc(c.applying(), func(r Rules) bool { return r.Strategy.means(name) })
}

// shared reports handlers that have the same consumer name in the same store.
func (c *checker) shared() {
	type memory struct {
		store, name string
		leases      bool
	}
	known := make(map[memory]string)
	for _, handler := range slices.Sorted(maps.Keys(c.policy.Consumers)) {
		rules, _ := c.policy.For(handler)
		if rules.Strategy == None {
			continue
		}
		path := below("consumers", handler)
		if c.isBroken(path+".consumer") || c.isBroken(path+".store") || c.isBroken(path+".strategy") {
			continue
		}
		name := rules.Consumer
		if name == "" {
			name = handler
		}
		m := memory{rules.Store, name, rules.Strategy == Dedup}
		if other, taken := known[m]; taken {
			c.problem(path+".consumer", "%s", usedTwice(name, other))
			continue
		}
		known[m] = handler
	}
}

func usedTwice(name, other string) string {
	return fmt.Sprintf("%q is the consumer of handler %q too, and the two would take each other's messages for duplicates: "+
		"give each its own", name, other)
}
