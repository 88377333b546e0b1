package policy

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// compare returns the differences between policy and router.
func (w *Wired) compare(handlers []string) (all Problems) {
	lacks := func(name string) (string, bool) {
		if slices.Contains(handlers, name) || slices.Contains(w.wiring.Absent, name) {
			return "", false
		}
		has := "none"
		if len(handlers) > 0 {
			has = strings.Join(handlers, ", ") + didYouMean(name, handlers)
		}
		return "the router has no such handler: if it is added later, or to another router, name it in Wiring.Absent; the router has " + has, true
	}
	for name := range w.policy.Consumers {
		if says, is := lacks(name); is {
			all = append(all, w.problems(name, errors.New(says))...)
		}
	}
	for name := range w.wiring.Before {
		if _, named := w.policy.Consumers[name]; named { // reported already
			continue
		}
		if says, is := lacks(name); is {
			all = append(all, Problem{Text: fmt.Sprintf("Wiring.Before[%q]: %s", name, says)})
		}
	}
	for _, handler := range handlers {
		all = append(all, w.missing(handler)...)
	}
	return append(all, w.shared(handlers)...)
}

// shared returns handlers that would use the same consumer name in the same store or leases. Check
// has reported those that the policy itself names so.
func (w *Wired) shared(handlers []string) (all Problems) {
	type memory struct {
		of    any // a store, or leases
		name  string
		epoch int
	}
	known := make(map[memory]string)
	for _, handler := range handlers {
		rules, ok := w.policy.For(handler)
		if !ok || rules.Shadow || !rules.Strategy.means("consumer") {
			continue
		}
		m := memory{name: cmp.Or(rules.Consumer, handler), epoch: rules.Epoch}
		if rules.Strategy == Dedup {
			d, _ := w.deduplicate(rules) // its error was reported before
			m.of = d.Claims
		} else {
			m.of, _ = w.wiring.store(rules)
		}
		other, taken := known[m]
		if !taken {
			known[m] = handler
			continue
		}
		if _, named := w.policy.Consumers[handler]; !named {
			handler, other = other, handler
		}
		all = append(all, w.problems(handler, lack{"consumer", usedTwice(m.name, other)})...)
	}
	return all
}
