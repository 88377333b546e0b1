package tests_test

import (
	"math/rand/v2"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/tests/process"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// produced is how many messages the handler of a killed service returns.
const produced = 2

// A service is killed at each boundary of a delivery; another one gets what the broker
// still has, and is killed at the next boundary.
func TestKilledAtEveryBoundary(t *testing.T) {
	t.Parallel()
	testdb.Some(t, 1, func(t *testing.T, db *testdb.DB) {
		k := newBroker(newBed(t, db))
		p := process.Start(t, k.service)
		for _, point := range process.Points() {
			p = k.killAt(p, point)
		}
		p.Close()
		k.collect(p)
		k.check()
	})
}

// What is seen from outside when a service was killed at a point.
func remains(point process.Point) (effects, published int) {
	switch point {
	case process.AfterCommit, process.BeforePublish:
		return 1, 0
	case process.MidPublish:
		return 1, 1
	case process.AfterPublish, process.BeforeSettle, process.MidSettle:
		return 1, produced
	default:
		return 0, 0
	}
}

// killAt kills p at a point of a new message and returns the service that followed.
func (k *broker) killAt(p *process.Process, point process.Point) *process.Process {
	k.Helper()
	victim, bystander := letter(), letter()
	k.letters = append(k.letters, victim, bystander)
	p.Deliver(process.Delivery{Message: victim, Stop: point})
	p.Deliver(process.Delivery{Message: bystander})
	require.Equal(k, point, p.Await(process.At, 1)[0].Point)
	p.Kill()
	k.collect(p)
	effects, published := remains(point)
	assert.Equal(k, effects, k.effectsOf(victim.UUID), "effects after a kill %s", point)
	assert.Len(k, k.published[victim.UUID], published, "published before a kill %s", point)

	next := process.Start(k, k.service)
	k.untilQuiet(next)
	if k.acked[victim.UUID] { // a broker may have missed the ack
		next.Deliver(process.Delivery{Message: victim})
		rig.Eventually(k, "the copy is acked", func() bool { return of(next.Events(process.Acked), victim.UUID) > 0 })
	}
	assert.Equal(k, 1, k.effectsOf(victim.UUID), "effects after a kill %s and a redelivery", point)
	return next
}

// A service under load, with every message delivered twice, is killed again and again at
// moments that nobody chose.
func TestKilledUnderLoad(t *testing.T) {
	t.Parallel()
	const messages, kills = 60, 5
	testdb.Some(t, 1, func(t *testing.T, db *testdb.DB) {
		k := newBroker(newBed(t, db))
		for range kills {
			for range messages / kills { // an earlier service may have been done with its own
				k.letters = append(k.letters, letter())
			}
			p := process.Start(k, k.service)
			k.deliverAll(p, 2)
			p.Await(process.Published, 1+rand.IntN(messages/kills))
			p.Kill()
			k.collect(p)
		}
		t.Logf("after %d kills %d of %d are acked", kills, len(k.acked), messages)
		last := process.Start(k, k.service)
		k.untilQuiet(last)
		last.Close()
		k.collect(last)
		k.check()
	})
}

// broker is one whose messages outlive the services: what is not acked is delivered again.
type broker struct {
	*bed
	service   process.Settings
	letters   []process.Message
	acked     map[string]bool
	published map[string][]process.Message // by the message they were produced for
}

func newBroker(b *bed) *broker {
	s := b.settings()
	s.Produce = produced
	return &broker{bed: b, service: s, acked: map[string]bool{}, published: map[string][]process.Message{}}
}

// deliverAll delivers, so many times each, what is not acked.
func (k *broker) deliverAll(p *process.Process, copies int) {
	k.Helper()
	for _, m := range k.letters {
		if !k.acked[m.UUID] {
			p.Deliver(process.Delivery{Message: m, Copies: copies})
		}
	}
}

// untilQuiet delivers to p what is not acked, and again what is nacked, until all is acked.
func (k *broker) untilQuiet(p *process.Process) {
	k.Helper()
	waiting := map[string]process.Message{}
	for _, m := range k.letters {
		if !k.acked[m.UUID] {
			waiting[m.UUID] = m
		}
	}
	k.deliverAll(p, 1)
	answered := 0
	rig.Eventually(k, "all is acked", func() bool {
		for _, e := range p.Events(process.Acked) {
			delete(waiting, e.UUID)
		}
		nacked := p.Events(process.Nacked)
		for ; answered < len(nacked); answered++ {
			if m, open := waiting[nacked[answered].UUID]; open {
				p.Deliver(process.Delivery{Message: m})
			}
		}
		return len(waiting) == 0
	})
}

// collect learns what a service that has ended had done.
func (k *broker) collect(p *process.Process) {
	for _, e := range p.Events(process.Acked) {
		k.acked[e.UUID] = true
	}
	for _, e := range p.Events(process.Published) {
		k.published[e.UUID] = append(k.published[e.UUID], *e.Published)
	}
}

// check holds the invariants: effects once, and everything produced was published, each
// with one UUID and equal bytes and metadata however often. An outcome is left only where
// the ack came before the kill and the settling did not; it is listed, and goes out equal.
func (k *broker) check() {
	k.Helper()
	left, err := admin.New(k.store).Unsettled(k.Context(), admin.ConsumerFilter{}, 0, 1000)
	require.NoError(k, err)
	for _, o := range left {
		assert.True(k, k.acked[o.MessageID], "an outcome is left of a message that was redelivered until its ack")
	}
	sent, err := k.store.Redispatch(k.Context(), k, 0)
	require.NoError(k, err)
	assert.Equal(k, len(left), sent)

	assert.Equal(k, len(k.letters), k.effects())
	again := 0
	for _, m := range k.letters {
		assert.Equal(k, 1, k.effectsOf(m.UUID), "effects of %s", m.UUID)
		first := map[string]process.Message{} // by its number
		for _, out := range k.published[m.UUID] {
			number := out.Metadata["number"]
			if known, found := first[number]; found {
				again++
				assert.Equal(k, known, out, "published again, but differently")
				continue
			}
			first[number] = out
		}
		assert.Len(k, first, k.service.Produce, "produced messages that reached the broker")
	}
	k.nothingOpen()
	assert.Equal(k, 0, k.count(`SELECT COUNT(*) FROM millrace_outcomes`))
	assert.Equal(k, len(k.letters), k.count(`SELECT COUNT(*) FROM millrace_claims WHERE result = 1`))
	k.Logf("%d messages, %d produced ones published again as they were, %d outcomes left by kills",
		len(k.letters), again, sent)
}

// Publish takes what an operator redispatches.
func (k *broker) Publish(_ string, msgs ...*message.Message) error {
	for _, m := range msgs {
		source := m.Metadata["for"]
		k.published[source] = append(k.published[source],
			process.Message{UUID: m.UUID, Metadata: m.Metadata, Payload: m.Payload})
	}
	return nil
}

// Close does nothing.
func (*broker) Close() error { return nil }
