package durable_test

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// releases returns what starts processes of the last release, which knows messages by their UUID, and of
// the next one, which knows them by their order and looks for their UUID as well.
func (b *bed) releases(mode pubsub.Mode, h message.HandlerFunc) (last, next func() *service) {
	start := func(change func(*pubsub.Durable, *millrace.Inbox)) *service {
		store := b.process()
		durable, i := quick(store), millrace.Inbox{Store: store}
		durable.Mode, durable.MaxAttempts = mode, 1000
		change(&durable, &i)
		return b.start(durable, h, i.Middleware)
	}
	return func() *service { return start(func(*pubsub.Durable, *millrace.Inbox) {}) },
		func() *service {
			return start(func(d *pubsub.Durable, i *millrace.Inbox) {
				d.Epoch, d.Key = 1, inbox.ByMetadata("order")
				i.Epoch, i.Key, i.FormerKey = d.Epoch, d.Key, inbox.ByUUID()
			})
		}
}

// ofOrder is a message that both releases have a key of.
func ofOrder() *message.Message {
	msg := newMessage()
	msg.Metadata.Set("order", watermill.NewShortUUID())
	return msg
}

// failingWhile is a handler that fails while it is told to.
func failingWhile(failing *atomic.Bool) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		if failing.Load() {
			return nil, errBoom
		}
		return nil, effect(msg)
	}
}

// formerBodies: a key that changes in a raised epoch, and what is stored.
var formerBodies = []testdb.Body{
	{Name: "a former key of a message that failed in the last release", Why: "it moves, is handled once, and stays known there", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		var failing atomic.Bool
		failing.Store(true)
		last, next := b.releases(pubsub.StoreOnFailure, failingWhile(&failing))
		msg := ofOrder()
		before := last()
		assert.True(t, before.deliver(msg))
		require.NoError(t, before.router.Close())
		failing.Store(false)
		after := next()
		rig.Eventually(b, "it is handled", func() bool { return b.effects(msg) == 1 && b.rows() == 0 })
		assert.True(t, after.deliver(msg))
		assert.True(t, last().deliver(msg))
		assert.Equal(t, 1, b.effects(msg))
	})},
	{Name: "a former key of a message that failed in the next release", Why: "the last one may have handled it since", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		var failing, fine atomic.Bool
		failing.Store(true)
		_, next := b.releases(pubsub.StoreOnFailure, failingWhile(&failing))
		last, _ := b.releases(pubsub.StoreOnFailure, failingWhile(&fine))
		msg := ofOrder()
		after := next()
		assert.True(t, after.deliver(msg))
		assert.True(t, last().deliver(msg))
		assert.Equal(t, 1, b.effects(msg))
		failing.Store(false)
		rig.Eventually(b, "it is closed", func() bool { return b.rows() == 0 })
		assert.True(t, after.deliver(msg))
		assert.Equal(t, 1, b.effects(msg))
	})},
	{Name: "a former key, and messages that both releases store", Why: "one of them handles each", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.stormOfReleases(pubsub.StoreFirst)
	})},
	{Name: "a former key, and messages of which some fail in both releases", Why: "one of them handles each, and its outcome goes out", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.stormOfReleases(pubsub.StoreOnFailure)
	})},
}

// stormOfReleases gives all messages to all processes of both releases. Handlers and publishers fail now and then.
func (b *bed) stormOfReleases(mode pubsub.Mode) {
	b.Helper()
	h := func(msg *message.Message) ([]*message.Message, error) {
		err := effect(msg)
		if rand.N(4) == 0 {
			err = errors.Join(err, errBoom)
		}
		invoice := message.NewMessage(watermill.NewUUID(), nil)
		invoice.Metadata.Set("of", msg.UUID)
		return []*message.Message{invoice}, err
	}
	last, next := b.releases(mode, h)
	services := []*service{last(), next(), last(), next()}
	all := make([]*message.Message, 15)
	for i := range all {
		all[i] = ofOrder()
	}
	var wg sync.WaitGroup
	for i, s := range services {
		if i < 2 {
			s.published.FailWith(errBoom)
		}
		for _, i := range rand.Perm(len(all)) {
			wg.Go(func() {
				for !s.deliver(all[i]) { //nolint:revive // a nack brings it again
				}
			})
		}
	}
	rig.Eventually(b, "most are handled", func() bool { return b.count(`SELECT COUNT(*) FROM effects`) > len(all)/2 })
	for _, s := range services {
		s.published.FailWith(nil)
	}
	wg.Wait()
	rig.Eventually(b, "nothing is left", func() bool { return b.rows() == 0 })
	outcomes := map[string]map[string]bool{}
	for _, s := range services {
		for _, invoice := range s.published.Messages() {
			of := invoice.Metadata.Get("of")
			if outcomes[of] == nil {
				outcomes[of] = map[string]bool{}
			}
			outcomes[of][invoice.UUID] = true
		}
	}
	for _, msg := range all {
		assert.Equal(b, 1, b.effects(msg))
		assert.Len(b, outcomes[msg.UUID], 1, "one invoice, however often")
	}
}
