package replay_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/replay"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// deadBodies: what was given up is sent again.
var deadBodies = []testdb.Body{
	{Name: "dead letters", Why: "they go where they came from, each is acked when it is stored, and what had failed runs once", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.relay()
		var mended atomic.Bool
		b.mu.Lock()
		b.projection = millrace.Inbox{Store: b.store, Consumer: "projection", Options: inbox.Options{RecordFailures: true, OnReplay: inbox.ReplayRefuse, TwinWait: rig.Patience}}.Middleware(
			func(msg *message.Message) ([]*message.Message, error) {
				if !mended.Load() {
					return nil, errors.New("it fails")
				}
				return project(msg)
			})
		b.mu.Unlock()
		var dead []*message.Message
		for i := range 3 {
			msg := order(i)
			_, err := b.projection(msg.Copy())
			require.Error(t, err)
			msg.Metadata.Set("topic_poisoned", "orders")
			dead = append(dead, msg)
		}
		mended.Store(true)
		feed := rig.NewFeed()
		go func() {
			for _, msg := range dead {
				feed.Send(t, msg)
				rig.Answer(t, msg)
			}
		}()
		status, err := b.replayer().Drain(t.Context(), replay.Dead{
			Name: "dead", From: feed, Topic: "poison", To: replay.Outbox(b.out), By: ada, Idle: time.Minute, Limit: 3,
		})
		require.NoError(t, err)
		assert.Equal(t, 3, status.Sent)
		assert.Equal(t, replay.Done, status.State)
		rig.Eventually(b, "they are handled", func() bool { return b.sent() == 3 && b.pending() == 0 })
		b.truth(3)
		assert.Equal(t, 0, b.count(`SELECT COUNT(*) FROM millrace_messages WHERE original IS NULL AND consumer =
			(SELECT id FROM millrace_consumers WHERE name = ?)`, []byte("projection")))
		assert.Equal(t, "orders", b.count1(`SELECT MIN(topic) FROM millrace_outbox`))
	})},
	{Name: "a dead letter of which nobody knows where it came from", Why: "it stays where it is", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		to := &sink{}
		for want, dead := range map[string]replay.Dead{
			"where it came from":     {To: replay.Outbox(b.out)},
			"the topic is empty":     {To: replay.Outbox(b.out), TopicOf: func(*message.Message) (string, error) { return "", nil }},
			"has no topic to go to:": {To: replay.Publisher(to), TopicOf: func(*message.Message) (string, error) { return "", nil }},
		} {
			feed, msg := rig.NewFeed(), order(1)
			acked := make(chan bool, 1)
			go func() {
				feed.Send(t, msg)
				acked <- rig.Answer(t, msg)
			}()
			dead.Name, dead.From, dead.Topic, dead.By, dead.Idle, dead.Limit = want, feed, "poison", ada, time.Minute, 1
			_, err := b.replayer().Drain(t.Context(), dead)
			require.ErrorContains(t, err, want)
			assert.False(t, <-acked)
		}
		assert.Equal(t, []int{0, 0}, []int{b.count(`SELECT COUNT(*) FROM millrace_outbox`), len(to.Messages())})
	})},
	{Name: "two empty one dead-letter queue", Why: "who has nothing to do does not end what the other is at", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		dead := replay.Dead{Name: "dead", Topic: "poison", To: replay.Outbox(b.out), By: ada, Idle: 10 * time.Millisecond}
		dead.From = duringSubscribe(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			status, err := b.replayer().Drain(ctx, busy(t, dead, cancel))
			require.ErrorIs(t, err, context.Canceled)
			require.Equal(t, 1, status.Sent)
		})
		status, err := b.replayer().Drain(t.Context(), dead)
		require.ErrorIs(t, err, replay.ErrTaken)
		assert.Equal(t, 1, status.Sent)
		status, err = b.replayer().Status(t.Context(), "dead")
		require.NoError(t, err)
		assert.Equal(t, replay.Running, status.State)
	})},
	{Name: "a limit of dead letters", Why: "it is for the whole replay, however often it is gone on with", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		dead := replay.Dead{Name: "dead", Topic: "poison", To: replay.Outbox(b.out), By: ada, Idle: time.Minute, Limit: 2}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		_, err := b.replayer().Drain(ctx, busy(t, dead, cancel))
		require.ErrorIs(t, err, context.Canceled)
		status, err := b.replayer().Drain(t.Context(), busy(t, dead, func() {}))
		require.NoError(t, err)
		assert.Equal(t, replay.Done, status.State)
		assert.Equal(t, 2, status.Sent)
		assert.Equal(t, 2, b.count(`SELECT COUNT(*) FROM millrace_outbox`))
	})},
}

// duringSubscribe is a subscriber to an empty topic, with which something happens meanwhile.
type duringSubscribe func()

// Subscribe returns a channel that gives nothing.
func (d duringSubscribe) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	d()
	return make(chan *message.Message), nil
}

// Close does nothing.
func (duringSubscribe) Close() error { return nil }

// busy is d with three letters, after each of which progress is called.
func busy(t *testing.T, d replay.Dead, progress func()) replay.Dead {
	t.Helper()
	letters := make(chan *message.Message, 3)
	for i := range 3 {
		msg := order(i)
		msg.Metadata.Set("topic_poisoned", "orders")
		letters <- msg
	}
	d.Idle = time.Minute
	d.From, d.Progress = lettersOf(letters), func(replay.Status) { progress() }
	return d
}

// lettersOf is a subscriber that gives what is in it.
type lettersOf chan *message.Message

// Subscribe returns the channel.
func (l lettersOf) Subscribe(context.Context, string) (<-chan *message.Message, error) { return l, nil }

// Close does nothing.
func (lettersOf) Close() error { return nil }
