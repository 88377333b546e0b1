package policy

import (
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
)

// InboxOf returns what the rules of a handler make of middleware.Inbox.
func (w *Wired) InboxOf(handler string) (millrace.Inbox, error) {
	return w.inbox(handler, w.rules(handler))
}

// GateOf returns what they make of middleware.VersionGate.
func (w *Wired) GateOf(handler string) (millrace.VersionGate, error) {
	return w.gate(w.rules(handler))
}

// DeduplicateOf returns what they make of middleware.Deduplicate.
func (w *Wired) DeduplicateOf(handler string) (millrace.Deduplicate, error) {
	return w.deduplicate(w.rules(handler))
}

// DurableOf returns what they make of pubsub.Durable.
func (w *Wired) DurableOf(handler string) (pubsub.Durable, error) {
	return w.durable(handler, w.rules(handler))
}

func (w *Wired) rules(handler string) Rules {
	rules, _ := w.policy.For(handler)
	return rules
}
