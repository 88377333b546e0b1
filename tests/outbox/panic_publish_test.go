package outbox_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestPublisherPanicConformance(t *testing.T) {
	t.Parallel()
	testdb.Conformance(t, []testdb.Body{
		{
			Name: "a function of the service that panics in a publisher", Why: "the panic goes on, and nothing is stored or held",
			Run: func(t *testing.T, db *testdb.DB) { publishersPanic(t, db, trippedPublishers, 0) },
		},
		{
			Name: "AfterCommit panics", Why: "what is committed is stored, and whoever published it is not told otherwise",
			Run: func(t *testing.T, db *testdb.DB) {
				publishersPanic(t, db, map[string]func(*outbox.Config, func(*message.Message)){"AfterCommit": afterBad}, 1)
			},
		},
	})
}

var trippedPublishers = map[string]func(*outbox.Config, func(*message.Message)){
	"OrderKey": func(c *outbox.Config, trip func(*message.Message)) {
		c.OrderKey = func(_ string, msg *message.Message) (string, error) { trip(msg); return "k", nil }
	},
	"Stamp": func(c *outbox.Config, trip func(*message.Message)) {
		c.Stamp = func(_ string, msg *message.Message) (string, int64, error) { trip(msg); return "a", 1, nil }
	},
	"Describe": func(c *outbox.Config, trip func(*message.Message)) {
		c.Describe = func(msg *message.Message) string { trip(msg); return "" }
	},
}

// afterBad trips after a commit of a bad message.
func afterBad(c *outbox.Config, trip func(*message.Message)) {
	var last *message.Message
	c.Describe = func(msg *message.Message) string { last = msg; return "" }
	c.AfterCommit = func() { trip(last) }
}

// publishing is a way to publish one message.
type publishing func(b *panicBed, msg *message.Message) error

var waysToPublish = map[string]publishing{
	"InTx": func(b *panicBed, msg *message.Message) error {
		return outbox.InTx(b.Context(), b.pool, func(ctx context.Context, _ *sqlx.Tx) error {
			msg.SetContext(ctx)
			return b.out.Publish("orders", msg)
		})
	},
	"WithTx": func(b *panicBed, msg *message.Message) error {
		tx, err := b.pool.BeginTxx(b.Context(), nil)
		require.NoError(b, err)
		defer tx.Rollback() //nolint:errcheck // it has ended, or its work panicked
		msg.SetContext(outbox.WithTx(b.Context(), tx))
		if err := b.out.Publish("orders", msg); err != nil {
			return err
		}
		defer b.out.Wake()
		return tx.Commit()
	},
	"standalone": func(b *panicBed, msg *message.Message) error { return b.out.Publish("orders", msg) },
	"standalone, several statements": func(b *panicBed, msg *message.Message) error {
		msg.Metadata.Set("large", strings.Repeat("x", 2<<20))
		return b.out.Publish("orders", message.NewMessage(watermill.NewUUID(), nil), msg)
	},
	"decorated": func(b *panicBed, msg *message.Message) error {
		decorated, err := b.out.Decorate(newMemoryBroker())
		require.NoError(b, err)
		return decorated.Publish("orders", msg)
	},
	"in a handler": func(b *panicBed, msg *message.Message) error {
		return b.handle(func(in *message.Message) ([]*message.Message, error) {
			msg.SetContext(in.Context())
			return nil, b.out.Publish("orders", msg)
		})
	},
}

// panicBed is a service with a small pool.
type panicBed struct {
	*post
	pool  *sqlx.DB
	out   *outbox.Publisher
	store *inbox.Store
}

// handle has a handler under middleware.Inbox handle a new message.
func (b *panicBed) handle(h message.HandlerFunc) error {
	_, err := millrace.Inbox{Store: b.store, Consumer: "billing", Outbox: b.out}.Middleware(h)(newOrder())
	return err
}

func publishersPanic(t *testing.T, db *testdb.DB, tripped map[string]func(*outbox.Config, func(*message.Message)), stored int) {
	p := newPost(t, db)
	for function, set := range tripped {
		for way, publish := range waysToPublish {
			for how, trip := range trips {
				p.publishesOn(function+" "+how+", "+way, set, trip, publish, stored)
			}
		}
	}
}

// publishesOn publishes two bad messages and a good one.
func (p *post) publishesOn(
	name string, set func(*outbox.Config, func(*message.Message)), trip func(), publish publishing, stored int,
) {
	p.Helper()
	pool, log, taken := p.db.Open(p), &logbook{}, &trap{trip: trip}
	pool.SetMaxOpenConns(3)
	defer pool.Close() //nolint:errcheck // the test is over
	config := outbox.Config{Logger: log, Standalone: true}
	set(&config, func(msg *message.Message) {
		if string(msg.Payload) == bad {
			taken.take()
		}
	})
	store := rig.NewStore(p, pool.DB, inbox.Config{})
	b := &panicBed{post: p, pool: pool.DB, out: rig.NewOutbox(p, pool.DB, config), store: store}
	for range 2 {
		msg := message.NewMessage(watermill.NewUUID(), []byte(bad))
		returned, panicked := p.within(name, func() { _ = publish(b, msg) })
		assert.Equal(p, stored, p.db.Count(p, `SELECT COUNT(*) FROM millrace_outbox WHERE uuid = ?`, msg.UUID), name)
		if strings.Contains(name, "panics") {
			assert.Equal(p, stored == 1, returned, "%s: it returns", name)
			assert.Equal(p, stored == 0, panicked, "%s: the panic goes on", name)
		}
	}
	assert.EqualValues(p, 2, taken.taken.Load(), name)
	if stored == 1 && strings.Contains(name, "panics") {
		assert.True(p, log.has("error: outbox: AfterCommit panicked; the messages are stored all the same"), name)
	}
	good := message.NewMessage(watermill.NewUUID(), []byte("good"))
	var err error
	p.within(name, func() { err = publish(b, good) })
	require.NoError(p, err, name)
	ctx, cancel := context.WithTimeout(p.Context(), rig.Patience)
	defer cancel()
	require.NoError(p, store.Close(ctx), name)
	assert.Eventually(p, func() bool { return pool.Stats().InUse == 0 }, rig.Patience, time.Millisecond, name)
}

// within does f in a goroutine that it may end.
func (p *post) within(name string, f func()) (returned, panicked bool) {
	p.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { panicked = recover() != nil }()
		f()
		returned = true
	}()
	select {
	case <-done:
	case <-time.After(rig.Patience):
		require.Fail(p, "it hangs", name)
	}
	return returned, panicked
}
