package durable_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// imports has the consumer know what another system has handled.
func (b *bed) imports(msg *message.Message) {
	b.Helper()
	all := func(yield func(admin.Imported, error) bool) { yield(admin.Imported{Key: []string{msg.UUID}}, nil) }
	report, err := admin.New(b.store).Import(context.WithoutCancel(b.Context()), inbox.ConsumerConfig{Name: consumer}, all, ada, admin.Pace{})
	assert.NoError(b, err)
	assert.Equal(b, 1, report.New)
}

// importBodies: what is stored, and known to have been handled elsewhere, is closed.
var importBodies = []testdb.Body{
	{Name: "stored, then imported", Why: "the queue closes it instead of handing it out", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage()
		b.storeIn(inbox.QueueConfig{}, msg)
		b.imports(msg)
		assert.Empty(t, rig.Take(t, b.storeIn(inbox.QueueConfig{}), 10))
		assert.Zero(t, b.rows())
	})},
	{Name: "stored, then imported, and no queue", Why: "the janitor closes it", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage()
		b.storeIn(inbox.QueueConfig{}, msg)
		b.imports(msg)
		rig.Purge(t, b.store)
		assert.Zero(t, b.rows())
	})},
	{Name: "imported while its handler fails", Why: "it is not to be tried again", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		events := b.told()
		msg := newMessage()
		b.storeIn(inbox.QueueConfig{}, msg)
		var runs atomic.Int32
		b.start(quick(b.store), func(msg *message.Message) ([]*message.Message, error) {
			runs.Add(1)
			b.imports(msg)
			return nil, errBoom
		})
		rig.Eventually(b, "it is closed", func() bool { return b.rows() == 0 })
		assert.EqualValues(t, 1, runs.Load())
		assert.Zero(t, events.Count("retried"))
	})},
	{Name: "imported, then delivered", Why: "it is stored, where it is stored first, and never handled", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg, other := newMessage(), newMessage()
		b.imports(msg)
		s := b.inboxed(storeFirst(b.store), effect)
		for _, m := range []*message.Message{msg, other, msg} {
			assert.True(t, s.deliver(m))
		}
		rig.Eventually(b, "both are closed", func() bool { return b.rows() == 0 && b.effects(other) == 1 })
		assert.Zero(t, b.effects(msg))
	})},
}
