package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
)

// setup is how a consumer is set up, in JSON.
type setup struct {
	Consumer  string  `json:"consumer"`
	Epoch     int     `json:"epoch"`
	Key       string  `json:"key"`
	Scope     string  `json:"scope"`
	Retention *string `json:"retention"` // null: for ever
	Window    *string `json:"window"`    // null: not declared
	Queue     bool    `json:"served"`
	Replays   string  `json:"replays"`
	Purged    *string `json:"purged_at"`
}

func setupOf(c admin.KnownConsumer) setup {
	_, source, scope := scopeOf(c.Key)
	s := setup{
		Consumer: c.Name, Epoch: c.Epoch, Key: source, Scope: scope, Queue: c.Served,
		Replays: c.OnReplay.String(), Purged: since(c.PurgedAt),
	}
	if c.Retention != inbox.Forever {
		text := span(c.Retention)
		s.Retention = &text
	}
	if c.Window > 0 {
		text := span(c.Window)
		s.Window = &text
	}
	return s
}

// scopeOf splits the description of a key into the key itself, its source, and the scope in which
// it is unique. It returns a description that only a later release knows unchanged.
func scopeOf(described string) (key inbox.Key, source, scope string) {
	key, err := inbox.Internals{}.ParseKey(described)
	if err != nil {
		return key, described, everywhere
	}
	key, perTopic, perType := key.Unqualified()
	switch {
	case perTopic && perType:
		scope = "per topic, per type"
	case perTopic:
		scope = "per topic"
	case perType:
		scope = "per type"
	default:
		scope = everywhere
	}
	return key, key.String(), scope
}

const everywhere = "all messages"

func setupsTable(setups []setup) string {
	if len(setups) == 0 {
		return ""
	}
	t := newTable("CONSUMER", "EPOCH", "KEY", "SCOPE", "RETENTION", "WINDOW", "QUEUE", "REPLAYS", "PURGED")
	for _, s := range setups {
		retention, window, queue, purged := "for ever", "not declared", "none", "never"
		if s.Retention != nil {
			retention = *s.Retention
		}
		if s.Window != nil {
			window = *s.Window
		}
		if s.Queue {
			queue = "served"
		}
		if s.Purged != nil {
			purged = *s.Purged
		}
		t.add(s.Consumer, s.Epoch, s.Key, s.Scope, retention, window, queue, s.Replays, purged)
	}
	return t.String() + "\n"
}

// newestOnly keeps the newest epoch of each consumer.
func newestOnly(consumers []admin.KnownConsumer) []admin.KnownConsumer {
	var all []admin.KnownConsumer
	for i, c := range consumers { // sorted by name and epoch
		if i+1 == len(consumers) || consumers[i+1].Name != c.Name {
			all = append(all, c)
		}
	}
	return all
}

// unservedTooLong is how long stored messages may wait without a queue. A deployment takes less.
const unservedTooLong = 15 * time.Minute

// judgeBacklog finds stored messages that no process delivers: those that no queue has taken, and
// those in progress whose process has died.
func judgeBacklog(consumers []admin.KnownConsumer, all []admin.Backlog) (found []inbox.Finding) {
	warn := func(problem, remedy string, b admin.Backlog) {
		found = append(found, inbox.Finding{Severity: inbox.Warning, Subject: fmt.Sprintf("consumer %q", b.Consumer), Problem: problem, Remedy: remedy})
	}
	for _, b := range all {
		newest := slices.ContainsFunc(consumers, func(c admin.KnownConsumer) bool { return c.Name == b.Consumer && c.Epoch == b.Epoch })
		if !newest || b.Served || b.OldestPending < unservedTooLong && b.Stale.N == 0 {
			continue
		}
		warn(fmt.Sprintf("no queue serves it, and messages are stored: %s due, %s in progress in a process that has died", b.Due, b.Stale),
			"start the service with pubsub.Durable for this consumer and epoch; it takes up both by itself", b)
	}
	return found
}

// judge returns the risks in how a consumer is set up that the inbox itself does not report.
func judge(c admin.KnownConsumer) []inbox.Finding {
	var found []inbox.Finding
	warn := func(problem, remedy string) {
		found = append(found, inbox.Finding{Severity: inbox.Warning, Subject: fmt.Sprintf("consumer %q", c.Name), Problem: problem, Remedy: remedy})
	}
	key, source, scope := scopeOf(c.Key)
	switch {
	case source == inbox.ByPayload().String():
		warn("its key is the payload: two equal commands, such as two payments of 10, count as one message",
			"use a key that the producer sets, such as the UUID, unless every message states a fact; then raise Epoch")
	case key.ByPlace() && !c.Served:
		warn("its key is a place in a log, and no queue serves it: a message that the producer sends twice is handled twice, and a "+
			"message that is parked cannot be sent to its topic again",
			"put pubsub.Durable before the handler, and use the UUID if the producer may send twice")
	case key.ByPlace():
		warn("its key is a place in a log: a message that the producer sends twice is handled twice, and a topic that is created again "+
			"begins at the old places", "use the UUID if the producer sets one, and raise Epoch when a topic is created again")
	case key.OfFields() && scope == everywhere:
		warn("its key is a business key that counts over all topics and types: an order's \"paid\" and its \"cancelled\" are "+
			"one message if both have it", "add WithinTopic or WithinType to the key if several kinds of messages come; then raise Epoch")
	}
	if c.Window == 0 && c.Retention != inbox.Forever {
		warn(fmt.Sprintf("it forgets after %s, and no window is declared: it is not known how late a message may be redelivered",
			span(c.Retention)), "set Inbox.Window to the longest redelivery that may happen, and Retention to twice that")
	}
	return found
}
