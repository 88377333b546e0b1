package gate_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
)

// firstSeenFails delivers the second version of an aggregate between two runs of the one that the gate saw first.
func firstSeenFails(t *testing.T, b *bed) {
	b.queued(b.store)
	fresh := func() *inbox.Store { // another process, which remembers nothing
		store := b.process()
		b.queued(store)
		return store
	}
	failed := false
	once := func(msg *message.Message) ([]*message.Message, error) {
		if !failed {
			failed = true
			return nil, errFails
		}
		return handler(msg)
	}
	first := change("a", 4)
	rig.MustFail(t, b.gated(b.store, millrace.VersionGate{First: inbox.FirstSeen}, once), again(first), errFails)
	must(t, b.gated(fresh(), millrace.VersionGate{First: inbox.FirstSeen}, once), change("a", 5))
	assert.Equal(t, 1, b.open(admin.Held))
	must(t, b.gated(b.store, millrace.VersionGate{First: inbox.FirstSeen, OnBeforeFirst: inbox.VersionDrop}, once), change("a", 3), again(first))
	assert.Equal(t, []int64{4}, b.applied("a"))
	assert.Equal(t, 1, b.events.Count("stale"), "3 is before the beginning")

	failed = false
	both := millrace.VersionGate{First: inbox.FirstSeen, Version: func(msg *message.Message) ([]inbox.Version, error) {
		own, err := inbox.VersionFromMetadata()(msg)
		return append(own, inbox.Version{Aggregate: "of all", Number: 7}), err
	}}
	first = change("b", 0)
	rig.MustFail(t, b.gated(fresh(), both, once), again(first), errFails)
	must(t, b.gated(fresh(), millrace.VersionGate{First: inbox.FirstSeen}, once), change("b", 1), change("of all", 8))
	assert.Equal(t, 2, b.open(admin.Held), "both aggregates begin")
	must(t, b.gated(fresh(), both, once), again(first))
	assert.Equal(t, []int64{0}, b.applied("b"))
	assert.EqualValues(t, 7, b.version("of all"))
}
