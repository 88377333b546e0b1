package durable_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestTwoPayloadsOfOneKey: one is the key's, and handled; the other is parked, and nothing else.
func TestTwoPayloadsOfOneKey(t *testing.T) {
	testdb.Conformance(t, disputeBodies)
}

// dispute is a service that stores a message with the field "later" until it is made due, and
// passes others on.
type dispute struct {
	*service
	one, other *message.Message
}

func (b *bed) dispute(h message.HandlerFunc, middlewares ...message.HandlerMiddleware) *dispute {
	b.Helper()
	durable := quick(b.store)
	durable.NotBefore = func(msg *message.Message) time.Time {
		switch msg.Metadata.Get("later") {
		case "":
			return time.Time{}
		case "who knows":
			panic("nobody")
		}
		return time.Now().Add(time.Hour)
	}
	d := &dispute{service: b.start(durable, h, middlewares...), one: newMessage()}
	d.other = another(d.one)
	return d
}

func early(msg *message.Message) *message.Message {
	msg = msg.Copy()
	msg.Metadata.Set("later", "yes")
	return msg
}

// due ends the wait of what is stored.
func (d *dispute) due() {
	d.Helper()
	d.db.Do(d, `UPDATE millrace_messages SET due_at = received_at WHERE status = 1`)
}

// ends expects that the message was handled with its payload, and that the other is parked.
func (d *dispute) ends(handled, parked *message.Message) {
	d.Helper()
	d.due()
	rig.Eventually(d, "one is handled and the other parked", func() bool {
		return d.effects(d.one) == 1 && d.open(admin.Parked) == 1 && d.rows() == 1 // one after the other: the parked one first
	})
	assert.Equal(d, string(parked.Payload), string(d.only(d.store, 0).Payload))
	for range 2 {
		assert.True(d, d.deliver(handled))
		assert.True(d, d.deliver(parked))
		assert.True(d, d.deliver(early(handled)))
		assert.True(d, d.deliver(early(parked)))
		d.due()
	}
	rig.Eventually(d, "copies change nothing", func() bool { return d.open(admin.Parked) == 1 && d.rows() == 1 })
	assert.Equal(d, 1, d.effects(d.one))
}

var disputeBodies = []testdb.Body{
	{Name: "both come early", Why: "the key is that of the stored one when the other comes again", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		d := b.dispute(silent(effect), millrace.Inbox{Store: b.store}.Middleware)
		assert.True(t, d.deliver(early(d.one)))
		assert.True(t, d.deliver(early(d.other)))
		assert.Equal(t, 1, d.open(admin.Parked))
		assert.True(t, d.deliver(d.other), "not early any more")
		assert.Zero(t, d.effects(d.one), "it is parked")
		d.ends(d.one, d.other)
	})},
	{Name: "both come early, without Inbox", Why: "the claim is that of the stored payload, so a copy of it is known", Run: func(t *testing.T, db *testdb.DB) {
		var handled atomic.Int32
		d := newBed(t, db).dispute(func(*message.Message) ([]*message.Message, error) { handled.Add(1); return nil, nil })
		assert.True(t, d.deliver(early(d.one)))
		assert.True(t, d.deliver(early(d.other)))
		d.due()
		rig.Eventually(d, "one is handled", func() bool { return handled.Load() == 1 && d.rows() == 1 })
		assert.True(t, d.deliver(early(d.one)))
		d.due()
		rig.Eventually(d, "the copy is closed", func() bool { return d.rows() == 1 })
		assert.EqualValues(t, 1, handled.Load())
		assert.Equal(t, 1, d.open(admin.Parked))
	}},
	{Name: "what the other produced is not published", Why: "its source brings it again, and it is", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		d := b.unpublished()
		assert.False(t, d.deliver(early(d.other)), "nacked, not parked")
		assert.Zero(t, d.open(admin.Parked))
		d.publishes(d.other)
		d.ends(d.other, d.one)
		assert.Len(t, d.published.Messages(), 1)
	})},
	unpublishedBody("it comes early", "what waits for a week must not hold it up", func(d *dispute) *message.Message {
		return early(d.other)
	}),
	unpublishedBody("it is marked as redelivered", "so is every one that was nacked", func(d *dispute) *message.Message {
		again := d.other.Copy()
		again.Metadata.Set(redelivered, "true")
		return again
	}),
	unpublishedBody("the consumer pauses", "that may be for long", func(d *dispute) *message.Message {
		d.published.FailWith(nil)
		require.NoError(d, admin.New(d.store).Pause(d.Context(), consumer, 0, ada))
		rig.Eventually(d, "the pause is noticed", func() bool {
			rows := d.rows()
			assert.True(d, d.deliver(newMessage()))
			return d.rows() > rows
		})
		return d.other
	}),
	unpublishedBody("it has no order", "it is not kept for an operator: it was handled", func(d *dispute) *message.Message {
		again := early(d.other)
		again.Metadata.Set("later", "who knows")
		return again
	}),
	{Name: "what it produced is not published, and it waits itself", Why: "what waits is made due, since it is the same message", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		d := b.produces()
		assert.True(t, d.deliver(early(d.one)))
		d.published.FailWith(errBoom)
		assert.True(t, d.deliver(d.one), "what is stored brings it out")
		d.published.FailWith(nil)
		rig.Eventually(d, "it is published", func() bool { return len(d.published.Messages()) == 1 && d.rows() == 0 })
		assert.Equal(t, 1, d.effects(d.one))
		assert.Zero(t, d.outcomes())
	})},
}

// unpublishedBody delivers a copy of a message that was handled, and whose outcome is not published.
func unpublishedBody(name, why string, again func(d *dispute) *message.Message) testdb.Body {
	return testdb.Body{
		Name: "what the other produced is not published, and " + name, Why: why,
		Run: testdb.With(newBed, func(_ *testing.T, b *bed) {
			d := b.unpublished()
			d.publishes(again(d))
		}),
	}
}

func (b *bed) produces() *dispute {
	b.Helper()
	return b.dispute(invoicing, millrace.Inbox{Store: b.store}.Middleware)
}

// unpublished is a service that has handled a message, and cannot publish what it produced, while
// another payload waits under its key.
func (b *bed) unpublished() *dispute {
	b.Helper()
	d := b.produces()
	assert.True(d, d.deliver(early(d.one)))
	d.published.FailWith(errBoom)
	assert.False(d, d.deliver(d.other), "nacked")
	assert.Equal(d, 1, d.outcomes())
	return d
}

// publishes mends the broker and delivers a copy of what was handled, and expects what it produced to be
// published and the other payload to wait as before.
func (d *dispute) publishes(again *message.Message) {
	d.Helper()
	d.published.FailWith(nil)
	published, rows := len(d.published.Messages()), d.rows()
	assert.True(d, d.deliver(again))
	require.Len(d, d.published.Messages(), published+1)
	assert.Equal(d, "invoice", d.published.Messages()[published].UUID)
	rig.Eventually(d, "the outcome is settled", func() bool { return d.outcomes() == 0 })
	assert.Equal(d, 1, d.effects(d.other))
	assert.True(d, d.deliver(again), "and once more")
	assert.Len(d, d.published.Messages(), published+1)
	assert.Equal(d, rows, d.rows(), "the other payload waits")
	assert.Equal(d, rows, d.open(admin.Received))
}

// TestTwoPayloadsOfOneKeyAtOnce: of a handler that runs it is not known whether it will have taken the
// key. On SQLite it stops every other writer.
func TestTwoPayloadsOfOneKeyAtOnce(t *testing.T) {
	for _, dialect := range []string{"postgres", "mysql"} {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			running, finish := make(chan struct{}), make(chan struct{})
			b := newBed(t, testdb.On(t, dialect))
			d := b.dispute(func(msg *message.Message) ([]*message.Message, error) {
				running <- struct{}{}
				<-finish
				return nil, effect(msg)
			}, millrace.Inbox{Store: b.store}.Middleware)
			assert.True(t, d.deliver(early(d.one)))
			straight, again := d.other.Copy(), early(d.other)
			d.source.Send(t, straight)
			<-running
			d.source.Send(t, again)
			rig.Eventually(d, "the copy waits for the handler", func() bool { return d.opening() == 1 })
			close(finish)
			assert.True(t, rig.Answer(t, straight))
			assert.True(t, rig.Answer(t, again))
			assert.Zero(t, d.open(admin.Parked), "a copy of what was handled")
			d.ends(d.other, d.one)
		})
	}
}

// TestAnotherPayloadWaitsForNoHandlerWhereAllIsStoredFirst: nobody goes past the table there, so the
// key is that of what is stored.
func TestAnotherPayloadWaitsForNoHandlerWhereAllIsStoredFirst(t *testing.T) {
	for _, dialect := range []string{"postgres", "mysql"} {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, testdb.On(t, dialect))
			durable := quick(b.store)
			durable.Mode, durable.Lease = pubsub.StoreFirst, time.Minute
			running, finish := make(chan struct{}), make(chan struct{})
			s := b.inboxed(durable, func(msg *message.Message) error {
				running <- struct{}{}
				<-finish
				return effect(msg)
			})
			msg := newMessage()
			assert.True(t, s.deliver(msg))
			<-running
			assert.True(t, s.deliver(another(msg)))
			assert.Equal(t, 1, b.open(admin.Parked))
			assert.Zero(t, b.effects(msg))
			close(finish)
			rig.Eventually(b, "the first is handled", func() bool { return b.effects(msg) == 1 && b.rows() == 1 })
		})
	}
}

// opening counts the statements that open a claim, and are not done with it.
func (b *bed) opening() int {
	b.Helper()
	return b.count(map[string]string{
		"postgres": `SELECT COUNT(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%INSERT INTO millrace_claims%'`,
		"mysql": `SELECT COUNT(*) FROM ` + b.db.Processes() + `
			WHERE db = DATABASE() AND command <> 'Sleep' AND info LIKE '%INSERT INTO millrace_claims%token + 1%' AND id <> CONNECTION_ID()`,
	}[b.db.Dialect])
}
