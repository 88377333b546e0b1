package durable_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
			s := b.inboxed(durable, func(msg *message.Message) error {
				if runs.run(msg) < 3 {
					return errBoom
				}
				return effect(msg)
			}, inbox.Options{Before: func(msg *message.Message) error {
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
			}})
			msg := newMessage()
			msg.Metadata.Set("key", strings.Repeat("k", 200))
			s.handles(msg)
			mu.Lock()
			assert.Len(t, asked, 4, name)
			for _, id := range asked {
				assert.Equal(t, asked[0], id, name)
			}
			assert.Equal(t, 1, calls, name)
			mu.Unlock()
		}
	})},
	{Name: "steps of a message that waits under the name of its handler", Why: "they are kept, though they have the name of the consumer", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		calls, failing := 0, true
		step := inbox.Step{Name: "pay", Do: func(context.Context, string) ([]byte, error) {
			calls++
			return nil, nil
		}}
		s := b.start(quick(b.store), silent(func(msg *message.Message) error {
			_, err := step.Run(msg.Context())
			if err == nil && failing {
				err = inbox.Terminal(errBoom)
			}
			return err
		}), millrace.Deduplicate{Claims: b.store.Leases(), Consumer: "sender"}.Middleware)
		assert.True(t, s.deliver(newMessage()))
		rig.Eventually(b, "it waits", func() bool { return b.open(admin.FailedTerminal) == 1 })
		b.db.Do(b, `UPDATE millrace_steps SET until = 1`)
		rig.Purge(t, b.store)
		failing = false
		require.NoError(t, admin.New(b.store).Retry(t.Context(), b.only(b.store, admin.FailedTerminal).ID, ada, nil))
		rig.Eventually(b, "it is handled", func() bool { return b.rows() == 0 })
		assert.Equal(t, 1, calls)
		rig.Purge(t, b.store)
		assert.Equal(t, 1, b.count(`SELECT COUNT(*) FROM millrace_steps`), "it was used again")
	})},
	{Name: "steps of a message that moved to another key", Why: "they are kept as long as it is open, and not done again", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		calls, failing := 0, true
		step := inbox.Step{Name: "pay", Do: func(context.Context, string) ([]byte, error) {
			calls++
			return nil, nil
		}}
		start := func(change func(d *pubsub.Durable, o *inbox.Options)) *service {
			durable, options := quick(b.process()), inbox.Options{Before: func(msg *message.Message) error {
				_, err := step.Run(msg.Context())
				if err == nil && failing {
					err = inbox.Terminal(errBoom)
				}
				return err
			}}
			change(&durable, &options)
			return b.inboxed(durable, effect, options)
		}
		msg := ofOrder()
		last := start(func(*pubsub.Durable, *inbox.Options) {})
		assert.True(t, last.deliver(msg))
		rig.Eventually(b, "it waits", func() bool { return b.open(admin.FailedTerminal) == 1 })
		require.NoError(t, last.router.Close())
		start(func(d *pubsub.Durable, o *inbox.Options) {
			d.Epoch, d.Key, o.FormerKey = 1, inbox.ByMetadata("order"), inbox.ByUUID()
		})
		rig.Eventually(b, "it moves", func() bool { return b.moved() == 1 })
		b.db.Do(b, `UPDATE millrace_steps SET until = 1`)
		rig.Purge(t, b.store)
		assert.Len(t, rig.Story(t, b.store, msg.Metadata.Get("order")).Steps, 1)
		failing = false
		rig.Eventually(b, "a queue serves it", func() bool {
			return admin.New(b.store).Retry(t.Context(), b.only(b.store, admin.FailedTerminal).ID, ada, nil) == nil
		})
		rig.Eventually(b, "it is handled", func() bool { return b.effects(msg) == 1 && b.rows() == 0 })
		assert.Equal(t, 1, calls)
	})},
	{Name: "steps of a message that is stored under another key", Why: "they are kept as long as it is open, and not done again", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		pay := payStep{failing: true}
		s := b.start(quick(b.store), silent(pay.run),
			millrace.Deduplicate{Claims: b.store.Leases(), Consumer: "sender", Key: inbox.ByMetadata("order")}.Middleware)
		assert.True(t, s.deliver(ofOrder()))
		rig.Eventually(b, "it waits", func() bool { return b.open(admin.FailedTerminal) == 1 })
		b.expireSteps()
		pay.failing = false
		require.NoError(t, admin.New(b.store).Retry(t.Context(), b.only(b.store, admin.FailedTerminal).ID, ada, nil))
		rig.Eventually(b, "it is handled", func() bool { return b.rows() == 0 })
		assert.Equal(t, 1, pay.calls)

		require.NoError(t, s.router.Close())

		queue := b.storeIn(inbox.QueueConfig{}, newMessage())
		b.expireSteps()
		assert.Equal(t, 1, b.count(`SELECT COUNT(*) FROM millrace_steps`), "nothing tells that it is not a step of that message")
		require.NoError(t, rig.Take(b, queue, 1)[0].Finish(t.Context()))
		b.expireSteps()
		assert.Zero(t, b.count(`SELECT COUNT(*) FROM millrace_steps`))
	})},
	{Name: "steps that expired before any open message came", Why: "they are none of those messages", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		pay := payStep{}
		in := millrace.Deduplicate{Claims: b.store.Leases(), Consumer: "sender", Key: inbox.ByMetadata("order")}
		_, err := in.Middleware(silent(pay.run))(ofOrder())
		require.NoError(t, err)
		b.storeIn(inbox.QueueConfig{}, newMessage())
		b.db.Do(b, `UPDATE millrace_steps SET until = 1`)
		rig.Purge(t, b.store)
		assert.Zero(t, b.count(`SELECT COUNT(*) FROM millrace_steps`))
	})},
	{Name: "more steps that are kept than the janitor reads at once", Why: "it goes on behind them", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		pay := payStep{}
		in := millrace.Deduplicate{Claims: b.store.Leases(), Consumer: "sender", Key: inbox.ByMetadata("order")}
		_, err := in.Middleware(silent(pay.run))(ofOrder())
		require.NoError(t, err)
		b.storeIn(inbox.QueueConfig{}, newMessage())
		b.db.Do(b, `UPDATE millrace_messages SET received_at = 1`)
		b.db.Do(b, `
			INSERT INTO millrace_steps (id, namespace, consumer, message_id, name, epoch, state, token, until, started_at)
			SELECT `+b.db.Bytes("i")+`, s.namespace, s.consumer, s.message_id, s.name, 0, 2, 1, CASE WHEN i > 600 THEN 2 ELSE 1 END, 1
			FROM millrace_steps s CROSS JOIN `+b.db.Numbers(601))
		b.db.Do(b, `UPDATE millrace_steps SET consumer = ? WHERE until = 2`, []byte(consumer))
		rig.Purge(t, b.store)
		assert.Equal(t, 600, b.count(`SELECT COUNT(*) FROM millrace_steps WHERE until = 1`))
		assert.Zero(t, b.count(`SELECT COUNT(*) FROM millrace_steps WHERE until = 2`), "its consumer knows its messages")
	})},
	{Name: "steps of a message that came again under its next key", Why: "they are kept as long as it is open, and not done again", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		pay := payStep{failing: true}
		before := inbox.Options{Before: pay.run}
		msg := ofOrder()
		in := millrace.Inbox{Store: b.process(), Consumer: consumer, Options: before}
		_, err := in.Middleware(silent(effect))(msg.Copy())
		require.ErrorIs(t, err, errBoom)
		require.Zero(t, b.rows())

		durable := quick(b.process())
		durable.Epoch, durable.Key = 1, inbox.ByMetadata("order")
		before.FormerKey = inbox.ByUUID()
		next := b.inboxed(durable, effect, before)
		assert.True(t, next.deliver(msg))
		rig.Eventually(b, "it waits", func() bool { return b.open(admin.FailedTerminal) == 1 })
		b.expireSteps()
		pay.failing = false
		require.NoError(t, admin.New(b.store).Retry(t.Context(), b.only(b.store, admin.FailedTerminal).ID, ada, nil))
		rig.Eventually(b, "it is handled", func() bool { return b.effects(msg) == 1 && b.rows() == 0 })
		assert.Equal(t, 1, pay.calls)
		b.expireSteps()
		assert.Zero(t, b.count(`SELECT COUNT(*) FROM millrace_steps`), "no message is open")
	})},
	{Name: "Before takes longer than the lease of a stored message", Why: "the lease is kept meanwhile", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		durable := storeFirst(b.store)
		durable.Lease = 8 * time.Second // a machine under load may renew it late
		var runs counter
		s := b.inboxed(durable, effect, inbox.Options{Before: func(msg *message.Message) error {
			runs.run(msg)
			<-time.After(durable.Lease + time.Second) // nothing to wait for: it is about time
			return nil
		}})
		msg := newMessage()
		s.handles(msg)
		assert.Equal(t, 1, runs.of(msg))
	})},
	{Name: "Before fails terminally", Why: "an unknown that nobody can decide is parked", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		s := b.inboxed(storeFirst(b.store), effect, inbox.Options{Before: func(*message.Message) error { return inbox.Terminal(errBoom) }})
		assert.True(t, s.deliver(newMessage()))
		rig.Eventually(b, "it is parked", func() bool { return b.open(admin.FailedTerminal) == 1 })
	})},
}

// payStep is what a handler does before its transaction: it pays, and then fails while it is told to.
type payStep struct {
	calls   int
	failing bool
}

func (p *payStep) run(msg *message.Message) error {
	_, err := inbox.Once(msg.Context(), "pay", func(context.Context, string) ([]byte, error) {
		p.calls++
		return nil, nil
	})
	if err == nil && p.failing {
		err = inbox.Terminal(errBoom)
	}
	return err
}

// expireSteps runs the janitor when all steps have just expired.
func (b *bed) expireSteps() {
	b.Helper()
	b.db.Do(b, `UPDATE millrace_steps SET until = ?`, time.Now().UnixMicro())
	<-time.After(5 * time.Millisecond) // nothing to wait for: it is about time
	rig.Purge(b, b.store)
}
