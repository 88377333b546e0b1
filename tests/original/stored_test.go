package original_test

import (
	"slices"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestConformance(t *testing.T) {
	testdb.Conformance(t, slices.Concat(attemptBodies, storedBodies(), identityBodies, upgradeBodies))
}

// place is where something changes the message on its way.
type place struct {
	name   string
	long   bool                        // only with make stress
	outer  []message.HandlerMiddleware // outside the inbox
	inner  []message.HandlerMiddleware // between the inbox and the gate
	spoils bool                        // the handler does
}

// chain returns the middlewares around a handler.
func (p place) chain(inbox message.HandlerMiddleware, gate ...message.HandlerMiddleware) []message.HandlerMiddleware {
	return slices.Concat(p.outer, []message.HandlerMiddleware{inbox}, p.inner, gate)
}

// handle applies a message, and then changes it if the handler does.
func (p place) handle(msg *message.Message) ([]*message.Message, error) {
	err := apply(msg)
	if p.spoils {
		spoil(msg)
	}
	return nil, err
}

// body is what is applied of a message.
func (p place) body(msg *message.Message) string {
	if p.spoils {
		return string(msg.Payload)
	}
	_, _ = unlock(func(m *message.Message) ([]*message.Message, error) { msg = m; return nil, nil })(fresh(msg))
	return string(msg.Payload)
}

var places = []place{
	{name: "unlocked outside", outer: []message.HandlerMiddleware{unlock}},
	{name: "unpacked outside", long: true, outer: []message.HandlerMiddleware{unpack}},
	{name: "another message outside", long: true, outer: []message.HandlerMiddleware{another}},
	{name: "unlocked between", inner: []message.HandlerMiddleware{unlock}},
	{name: "unpacked between", long: true, inner: []message.HandlerMiddleware{unpack}},
	{name: "changed by the handler", spoils: true},
}

// storedBodies: what is stored of a message is what came, wherever it is changed.
func storedBodies() (all []testdb.Body) {
	for _, p := range places {
		if p.long && !testdb.Long() {
			continue
		}
		add := func(name, why string, run func(b *bed)) {
			all = append(all, testdb.Body{
				Name: p.name + ", " + name, Why: why, Run: func(t *testing.T, db *testdb.DB) { run(newBed(t, db)) },
			})
		}
		add("held", "it is delivered from the table as it came", func(b *bed) { held(b, p, pubsub.StoreOnFailure) })
		add("held, stored first", "it is delivered from the table as it came", func(b *bed) { held(b, p, pubsub.StoreFirst) })
		add("parked", "an operator gets it as it came", func(b *bed) { parked(b, p) })
		add("collided", "each payload is kept as it came", func(b *bed) { collided(b, p) })
		add("recorded", "a failure is recorded with the message as it came", func(b *bed) { recorded(b, p) })
		add("journaled", "the journal has it as it came", func(b *bed) { journaled(b, p) })
		add("failed", "the queue tries again what came, and a late copy is no collision",
			func(b *bed) { failed(b, p, pubsub.StoreOnFailure) })
		add("failed, stored first", "the queue tries again what came, and a late copy is no collision",
			func(b *bed) { failed(b, p, pubsub.StoreFirst) })
		add("given up", "OnPark and the table have it as it came", func(b *bed) { givenUp(b, p) })
	}
	return all
}

func held(b *bed, p place, mode pubsub.Mode) {
	gate := millrace.VersionGate{}.Middleware
	s := b.serve(b.durable(mode), p.handle, p.chain(b.inbox(), gate)...)
	first, second := change(1), change(2)
	s.deliver(second)
	rig.Eventually(b, "it is held", func() bool { return b.events.Count("held") == 1 })
	b.storedAs(admin.Held, second)
	s.deliver(first)
	rig.Eventually(b, "both are applied", func() bool { return len(b.effects()) == 2 && b.rows() == 0 })
	assert.ElementsMatch(b, []string{p.body(first), p.body(second)}, b.effects())
	s.deliver(first, second)
	again := *b
	again.store = b.newStore()
	late := again.serve(again.durable(pubsub.StoreOnFailure), p.handle, p.chain(again.inbox(), gate)...)
	late.deliver(first, second)
	rig.Eventually(b, "the table is empty", func() bool { return b.rows() == 0 })
	assert.Len(b, b.effects(), 2)
	b.noCollision()
}

func parked(b *bed, p place) {
	s := b.serve(nil, p.handle, p.chain(b.inbox(), millrace.VersionGate{}.Middleware)...)
	msg := change(1)
	s.deliver(change(1), msg) // the version is the first one's
	b.storedAs(admin.Parked, msg)
}

func collided(b *bed, p place) {
	s := b.serve(nil, p.handle, p.chain(b.inbox())...)
	msg := change(1)
	twin := fresh(msg)
	twin.Payload = lock("another")
	s.deliver(msg, twin, twin, msg)
	b.storedAs(admin.Parked, twin)
	assert.Equal(b, 1, b.rows())
	assert.Len(b, b.effects(), 1)
}

func recorded(b *bed, p place) {
	fails := true
	s := b.serve(nil, func(msg *message.Message) ([]*message.Message, error) {
		out, err := p.handle(msg)
		if fails {
			err = errBoom
		}
		return out, err
	}, p.chain(b.inbox(recording))...)
	msg := change(1)
	c := fresh(msg)
	s.source.Send(s, c)
	rig.Within(b, c.Nacked(), "it is nacked")
	b.storedAs(admin.FailedRetryable, msg)
	fails = false
	s.deliver(msg)
	assert.Equal(b, []string{p.body(msg)}, b.effects())
	assert.Zero(b, b.rows())
	b.noCollision()
}

func journaled(b *bed, p place) {
	s := b.serve(nil, p.handle, p.chain(b.inbox(func(i *millrace.Inbox) { i.Journal = true }))...)
	msg := change(1)
	s.deliver(msg)
	kept, err := admin.New(b.store).Journal(b.Context(), admin.JournalFilter{Consumer: consumer}, 0, 10)
	require.NoError(b, err)
	require.Len(b, kept, 1)
	same(b, msg, kept[0].Message)
}

func failed(b *bed, p place, mode pubsub.Mode) {
	var s seen
	handle := func(msg *message.Message) ([]*message.Message, error) {
		times := s.add(msg)
		out, err := p.handle(msg)
		if times < 3 {
			return out, errBoom
		}
		return out, err
	}
	first := b.serve(b.durable(mode), handle, p.chain(b.inbox())...)
	msg := change(1)
	first.deliver(msg)
	rig.Eventually(b, "it is handled", func() bool { return len(b.effects()) == 1 && b.rows() == 0 })
	assert.Equal(b, []string{p.body(msg)}, b.effects())
	again := *b
	again.store = b.newStore()
	late := again.serve(again.durable(pubsub.StoreOnFailure), handle, p.chain(again.inbox())...)
	late.deliver(msg)
	rig.Eventually(b, "the table is empty", func() bool { return b.rows() == 0 })
	assert.Len(b, b.effects(), 1)
	b.noCollision()
}

func givenUp(b *bed, p place) {
	told := make(chan *message.Message, 1)
	durable := b.durable(pubsub.StoreFirst)
	durable.MaxAttempts = 1
	durable.OnPark = func(msg *message.Message, _ string) error {
		told <- fresh(msg)
		return nil
	}
	s := b.serve(durable, func(msg *message.Message) ([]*message.Message, error) {
		_, _ = p.handle(msg)
		return nil, errBoom
	}, p.chain(b.inbox())...)
	msg := change(1)
	s.deliver(msg)
	same(b, msg, rig.Within(b, told, "OnPark is called"))
	rig.Eventually(b, "it is parked", func() bool {
		return b.count(`SELECT COUNT(*) FROM millrace_messages WHERE status = ?`, admin.Parked) == 1
	})
	b.storedAs(admin.Parked, msg)
}
