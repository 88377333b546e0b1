package replay_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/replay"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// panicBodies: functions of the service that panic in a replay.
var panicBodies = []testdb.Body{
	{Name: "a function that panics in a replay", Why: "the panic goes on, nothing is held, and the replay can be gone on with", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		b.relay()
		b.orders(30)
		for name, set := range map[string]func(r *replay.Request, c *tripped){
			"OrderKey":  func(r *replay.Request, c *tripped) { r.To = replay.Outbox(c.outbox()) },
			"Publisher": func(r *replay.Request, c *tripped) { r.To = replay.Publisher(c) },
			"Progress":  func(r *replay.Request, c *tripped) { r.Progress = func(replay.Status) { c.trip() } },
		} {
			rig.Eventually(b, "all are sent", func() bool { return b.pending() == 0 })
			kept := b.count(`SELECT COUNT(*) FROM millrace_outbox`)
			c := &tripped{bed: b, pool: db.Open(t)}
			c.pool.SetMaxOpenConns(3)
			r := b.request(name)
			r.PerSecond = 20 // several batches
			set(&r, c)
			replayer, err := replay.New(c.pool.DB, b.store, replay.Config{})
			require.NoError(t, err)
			c.passes(name, func() error {
				_, err := replayer.Run(t.Context(), r)
				return err
			})
			status, err := b.replayer().Status(t.Context(), name)
			require.NoError(t, err)
			assert.Equal(t, replay.Done, status.State, name)
			assert.Equal(t, kept, status.Sent, name)
		}
	}},
	{Name: "a function that panics, and a pool of one connection", Why: "the transaction is rolled back, not left to the end of its context", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		b.relay()
		b.orders(1)
		rig.Eventually(b, "it is sent", func() bool { return b.pending() == 0 })
		c := &tripped{bed: b, pool: db.Open(t)}
		c.pool.SetMaxOpenConns(1)
		r := b.request("one")
		r.To = replay.Outbox(c.outbox())
		replayer, err := replay.New(c.pool.DB, b.store, replay.Config{})
		require.NoError(t, err)
		for range 2 {
			assert.Panics(t, func() { _, _ = replayer.Run(t.Context(), r) })
			rig.Eventually(b, "the connection is free", func() bool { return c.pool.Stats().InUse == 0 })
			assert.Equal(t, 1, c.pool.Stats().OpenConnections, "and was not thrown away")
		}
		_, err = replayer.Run(t.Context(), r)
		require.NoError(t, err)
		assert.Equal(t, 2, b.count(`SELECT COUNT(*) FROM millrace_outbox`), "it is stored once more, and only once")
	}},
	{Name: "a function that panics for a dead letter", Why: "the letter is nacked, or acked where it was sent", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		for name, set := range map[string]func(d *replay.Dead, c *tripped){
			"TopicOf": func(d *replay.Dead, c *tripped) {
				d.TopicOf = func(*message.Message) (string, error) { c.trip(); return "orders", nil }
			},
			"OrderKey":  func(d *replay.Dead, c *tripped) { d.To = replay.Outbox(c.outbox()) },
			"Publisher": func(d *replay.Dead, c *tripped) { d.To = replay.Publisher(c) },
			"Progress":  func(d *replay.Dead, c *tripped) { d.Progress = func(replay.Status) { c.trip() } },
		} {
			c := &tripped{bed: b, pool: db.Open(t)}
			c.pool.SetMaxOpenConns(3)
			feed, letter := rig.NewFeed(), order(1)
			d := replay.Dead{
				Name: "dead, " + name, From: feed, Topic: "poison", To: replay.Outbox(b.out), By: ada, Idle: time.Minute, Limit: 1,
				TopicOf: func(*message.Message) (string, error) { return "orders", nil },
			}
			set(&d, c)
			replayer, err := replay.New(c.pool.DB, b.store, replay.Config{})
			require.NoError(t, err)
			answers := make(chan bool, 1)
			deliver := func() {
				msg := letter.Copy()
				feed.Send(t, msg)
				answers <- rig.Answer(t, msg)
			}
			acked := false
			c.passes(name, func() error {
				if !acked {
					go deliver()
				}
				defer func() {
					if !acked {
						acked = <-answers
					}
				}()
				_, err := replayer.Drain(t.Context(), d)
				return err
			})
			assert.True(t, acked, name)
			status, err := b.replayer().Status(t.Context(), d.Name)
			require.NoError(t, err)
			assert.Equal(t, replay.Done, status.State, name)
			assert.Equal(t, 1, status.Sent, name)
		}
	}},
}

// tripped is a service with a small pool, of which a function panics the first two times.
type tripped struct {
	*bed
	pool  *testdb.DB
	taken atomic.Int32
}

func (c *tripped) trip() {
	if c.taken.Add(1) <= 2 {
		panic("a function of the service")
	}
}

// Publish is a broker's.
func (c *tripped) Publish(string, ...*message.Message) error {
	c.trip()
	return nil
}

// outbox is one whose OrderKey trips.
func (c *tripped) outbox() *outbox.Publisher {
	c.Helper()
	out, err := outbox.NewPublisher(c.pool.DB, outbox.Config{OrderKey: func(topic string, msg *message.Message) (string, error) {
		c.trip()
		return replay.OrderKey(topic, msg)
	}})
	require.NoError(c, err)
	return out
}

// passes calls run until it returns: its panics come through, and nothing is held between them.
func (c *tripped) passes(name string, run func() error) {
	c.Helper()
	defer c.pool.Close() //nolint:errcheck // the test is over
	for {
		var err error
		var reason any
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer func() { reason = recover() }()
			err = run()
		}()
		select {
		case <-done:
		case <-time.After(rig.Patience):
			require.Fail(c, "it hangs", name)
		}
		assert.Eventually(c, func() bool { return c.pool.Stats().InUse == 0 }, rig.Patience, time.Millisecond, name)
		if reason == nil {
			require.NoError(c, err, name)
			break
		}
		assert.True(c, strings.HasPrefix(reason.(string), "a function"), name)
		ctx, cancel := context.WithTimeout(c.Context(), rig.Patience)
		_, err = c.pool.ExecContext(ctx, `UPDATE projection SET orders = orders`) // the turn to write is free
		cancel()
		require.NoError(c, err, name)
	}
	assert.GreaterOrEqual(c, c.taken.Load(), int32(2), name)
}
