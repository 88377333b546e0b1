package durable_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

var stepBodies = []testdb.Body{
	{Name: "a step of a stored message", Why: "each attempt has the same id, and it is done once", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		for mode, name := range []string{"on failure", "first"} {
			var mu sync.Mutex
			var asked []string
			calls := 0
			durable := quick(b.store)
			durable.Mode, durable.Consumer, durable.Key = pubsub.Mode(mode), name, inbox.ByMetadata("key")
			var runs counter
			step := inbox.Step{Name: "mail", Do: func(context.Context, string) ([]byte, error) {
				calls++
				return nil, nil
			}}
			s := b.start(durable, func(msg *message.Message) ([]*message.Message, error) {
				if runs.run(msg) < 3 {
					return nil, errBoom
				}
				return nil, effect(msg)
			}, millrace.Inbox{Store: b.store, Consumer: name, Key: inbox.ByMetadata("key"), Options: inbox.Options{Before: func(msg *message.Message) error {
				id, err := inbox.ID(msg.Context())
				if err != nil {
					return err
				}
				mu.Lock()
				defer mu.Unlock()
				asked = append(asked, id)
				if len(asked) == 2 {
					return errBoom
				}
				_, err = step.Run(msg.Context())
				return err
			}}}.Middleware)
			msg := newMessage()
			msg.Metadata.Set("key", strings.Repeat("k", 200))
			assert.True(t, s.deliver(msg), name)
			rig.Eventually(b, "it is handled", func() bool { return b.effects(msg) == 1 && b.rows() == 0 })
			mu.Lock()
			assert.Len(t, asked, 4, name)
			for _, id := range asked {
				assert.Equal(t, asked[0], id, name)
			}
			assert.Equal(t, 1, calls, name)
			mu.Unlock()
		}
	})},
	{Name: "Before takes longer than the lease of a stored message", Why: "the lease is kept meanwhile", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		durable := quick(b.store)
		durable.Mode = pubsub.StoreFirst
		var runs counter
		s := b.start(durable, func(msg *message.Message) ([]*message.Message, error) { return nil, effect(msg) },
			millrace.Inbox{Store: b.store, Options: inbox.Options{Before: func(msg *message.Message) error {
				runs.run(msg)
				timer := time.NewTimer(3 * durable.Lease) // nothing to wait for: it is about time
				defer timer.Stop()
				<-timer.C
				return nil
			}}}.Middleware)
		msg := newMessage()
		assert.True(t, s.deliver(msg))
		rig.Eventually(b, "it is handled", func() bool { return b.effects(msg) == 1 && b.rows() == 0 })
		assert.Equal(t, 1, runs.of(msg))
	})},
	{Name: "Before fails terminally", Why: "an unknown that nobody can decide is parked", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		durable := quick(b.store)
		durable.Mode = pubsub.StoreFirst
		s := b.start(durable, func(msg *message.Message) ([]*message.Message, error) { return nil, effect(msg) },
			millrace.Inbox{Store: b.store, Options: inbox.Options{Before: func(*message.Message) error { return inbox.Terminal(errBoom) }}}.Middleware)
		assert.True(t, s.deliver(newMessage()))
		rig.Eventually(b, "it is parked", func() bool { return b.open(admin.FailedTerminal) == 1 })
	})},
}
