// Package policy_test drives one router by one policy: six consumers, on each database.
package policy_test

import (
	"context"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/policy"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestMain(m *testing.M) {
	testdb.Overlap(4)
	m.Run()
}

const (
	wait = 30 * time.Second
	tick = 10 * time.Millisecond
)

// bed is a service with the six consumers, wired by their policy.
type bed struct {
	*testing.T
	db      *testdb.DB
	store   *inbox.Store
	events  *rig.Events
	feeds   map[string]*rig.Feed
	outside *outside
}

func newBed(t *testing.T, db *testdb.DB) *bed {
	t.Helper()
	b := &bed{T: t, db: db, events: &rig.Events{}, feeds: map[string]*rig.Feed{}, outside: &outside{fail: map[string]int{}}}
	var err error
	b.store = rig.NewStore(t, db.DB, inbox.Config{Observers: []inbox.Observer{b.events}})
	require.NoError(t, b.store.Migrate(t.Context()))
	require.NoError(t, createEffects(t.Context(), db.DB, db.Dialect))
	out := rig.NewOutbox(t, db.DB, outbox.Config{})
	p, err := policy.ReadFile(six)
	require.NoError(t, err)

	router := rig.NewRouter(t)
	wiring := policy.Wiring{Store: b.store, Outbox: out}
	wiring.Durable.Poll = 20 * time.Millisecond
	wired, err := p.Wire(router, wiring)
	require.NoError(t, err)
	require.NoError(t, addSix(router, func(handler string) (message.Subscriber, error) {
		b.feeds[handler] = rig.NewFeed()
		return wired.Subscriber(handler, b.feeds[handler])
	}, b.outside, undisturbed))
	b.run(router)
	return b
}

func (b *bed) run(router *message.Router) {
	b.Helper()
	ended := rig.Run(b, router)
	b.Cleanup(func() {
		require.NoError(b, router.Close())
		require.NoError(b, <-ended)
		require.NoError(b, b.store.Close(context.WithoutCancel(b.Context())))
	})
}

// deliver hands a copy of msg to a consumer and reports whether it was acked.
func (b *bed) deliver(handler string, msg *message.Message) (acked bool) {
	b.Helper()
	own := msg.Copy()
	b.feeds[handler].Send(b, own)
	return rig.Answer(b, own)
}

// publish delivers msgs, one after the other, to all six, who must take them.
func (b *bed) publish(msgs ...*message.Message) {
	b.Helper()
	for _, msg := range msgs {
		for handler := range b.feeds {
			require.True(b, b.deliver(handler, msg), handler)
		}
	}
}

// done is what the consumers have done: their effects, and what became of them outside.
type done map[string]string

func (b *bed) done() done {
	b.Helper()
	all := done{}
	for handler := range b.feeds {
		effects, err := effectsOf(b.Context(), b.db.DB, handler)
		require.NoError(b, err)
		all[handler] = effects
	}
	mails, warmed := b.outside.all()
	all["mails"], all["cache-warmer"] = strings.Join(mails, " "), strings.Join(warmed, " ")
	var commands []string
	require.NoError(b, b.db.SelectContext(b.Context(), &commands, `SELECT uuid FROM millrace_outbox ORDER BY id`))
	all["commands"] = strings.Join(commands, " ")
	return all
}

// becomes waits until the consumers have done what they should.
func (b *bed) becomes(want done) {
	b.Helper()
	assert.Eventually(b, func() bool { return reflect.DeepEqual(want, b.done()) }, rig.Patience, tick)
	require.Equal(b, want, b.done())
}

// open counts what the store keeps of a consumer in a state.
func (b *bed) open(handler string, status admin.Status) int {
	b.Helper()
	found := rig.Find(b, b.store, admin.Filter{Consumer: handler, Status: status})
	return len(found)
}
