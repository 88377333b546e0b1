package original_test

import (
	"bytes"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// identityBodies: what tells messages apart, where they change on their way.
var identityBodies = []testdb.Body{
	{Name: "a key that changes behind Durable", Why: "one message with two keys is handled twice, so it is kept for an operator", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		durable := b.durable(pubsub.StoreOnFailure)
		durable.Key = inbox.ByPayload()
		s := b.serve(durable, func(msg *message.Message) ([]*message.Message, error) { return nil, apply(msg) }, unlock, b.inbox(byPayload))
		msg := change(1)
		s.deliver(msg)
		assert.Empty(t, b.effects())
		b.storedAs(admin.FailedTerminal, msg)
	}},
	{Name: "another UUID behind Durable", Why: "one message with two keys is handled twice, so it is kept for an operator", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		s := b.serve(b.durable(pubsub.StoreOnFailure),
			func(msg *message.Message) ([]*message.Message, error) { return nil, apply(msg) }, envelope, b.inbox())
		msg := change(1)
		s.deliver(msg)
		assert.Empty(t, b.effects())
		b.storedAs(admin.FailedTerminal, msg)
	}},
	{Name: "another UUID behind Durable, and one key", Why: "it is known and kept as it came", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		durable := b.durable(pubsub.StoreOnFailure)
		durable.Key = inbox.ByMetadata(inbox.AggregateField)
		keyed := func(i *millrace.Inbox) { i.Key = durable.Key; i.OnCollision = inbox.CollisionPark }
		apply := func(msg *message.Message) ([]*message.Message, error) { return nil, apply(msg) }
		msg := change(1)
		b.serve(durable, apply, envelope, b.inbox(keyed)).deliver(msg)
		assert.Equal(t, []string{".secret 1"}, b.effects())

		again := *b
		again.store = b.newStore()
		durable.Store = again.store
		s := again.serve(durable, apply, envelope, again.inbox(keyed))
		s.deliver(msg)
		stored := fresh(msg)
		stored.Metadata.Set("_watermill_amqp_redelivered", "true")
		s.deliver(stored)
		rig.Eventually(b, "the copy is closed", func() bool { return b.rows() == 0 })
		assert.Len(t, b.effects(), 1)
		b.noCollision()

		other := change(2)
		s.deliver(other)
		b.storedAs(admin.Parked, other)
		late := change(3)
		late.Metadata.Set("_watermill_amqp_redelivered", "true")
		s.deliver(late)
		rig.Eventually(b, "it is parked", func() bool {
			return b.rows() == 2 && b.count(`SELECT COUNT(*) FROM millrace_messages WHERE status = ?`, admin.Parked) == 2
		})
		b.storedAs(admin.Parked, late)
		assert.Len(t, b.effects(), 1)
	}},
	{Name: "a fingerprint behind Durable", Why: "both ask it about the message as it came", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		print := func(msg *message.Message) ([]byte, error) { return bytes.TrimRight(msg.Payload, " #"), nil }
		durable := b.durable(pubsub.StoreOnFailure)
		durable.Fingerprint = print
		settings := func(i *millrace.Inbox) { i.Fingerprint = print }
		var s seen
		handle := func(msg *message.Message) ([]*message.Message, error) {
			if err := apply(msg); err != nil || s.add(msg) > 2 {
				return nil, err
			}
			return nil, errBoom
		}
		msg := change(1)
		b.serve(durable, handle, unlock, b.inbox(settings)).deliver(msg)
		rig.Eventually(b, "it is handled", func() bool { return len(b.effects()) == 1 && b.rows() == 0 })
		again := *b
		again.store = b.newStore()
		durable.Store = again.store
		again.serve(durable, handle, unlock, again.inbox(settings)).deliver(msg)
		rig.Eventually(b, "the table is empty", func() bool { return b.rows() == 0 })
		assert.Len(t, b.effects(), 1)
		b.noCollision()
	}},
	{Name: "copies at once, changed on their way", Why: "one answers the others in memory", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		began, goOn := make(chan struct{}), make(chan struct{})
		s := b.serve(nil, func(msg *message.Message) ([]*message.Message, error) {
			close(began)
			<-goOn
			return nil, apply(msg)
		}, unlock, b.inbox())
		msg := change(1)
		var copies []*message.Message
		for range 4 {
			c := fresh(msg)
			copies = append(copies, c)
			s.source.Send(t, c)
		}
		<-began
		close(goOn)
		for _, c := range copies {
			assert.True(t, rig.Answer(t, c))
		}
		assert.Len(t, b.effects(), 1)
		assert.Equal(t, 3, b.events.Count("duplicate"))
		b.noCollision()
	}},
	{Name: "a replay with another payload", Why: "the corrected payload is stored as it came", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		fails := true
		var handled []string
		handle := func(msg *message.Message) ([]*message.Message, error) {
			if fails {
				return nil, inbox.Terminal(errBoom)
			}
			handled = append(handled, string(msg.Payload))
			return nil, apply(msg)
		}
		s := b.serve(b.durable(pubsub.StoreOnFailure), handle, unlock, b.inbox())
		msg := change(1)
		s.deliver(msg)
		rig.Eventually(b, "it failed", func() bool {
			return b.count(`SELECT COUNT(*) FROM millrace_messages WHERE status = ?`, admin.FailedTerminal) == 1
		})
		b.storedAs(admin.FailedTerminal, msg)
		fails = false
		corrected := fresh(msg)
		corrected.Payload = lock("corrected")
		corrected.Metadata.Set(inbox.ReplayField, "repair")
		s.deliver(corrected)
		rig.Eventually(b, "it is handled", func() bool { return len(b.effects()) == 1 && b.rows() == 0 })
		assert.Equal(t, []string{".corrected"}, b.effects())
	}},
}
