package tests_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	box "github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// returning are the functions that are called for what a handler returns.
type returning struct {
	*inbox.Config
	*millrace.Inbox

	outbox *box.Config // nil: what is returned is kept as the outcome
}

var panickingReturning = map[string]func(*returning){
	"publisher": func(r *returning) { r.Outbox = exploding{&rig.Publisher{}} },
	"order key": func(r *returning) {
		r.outbox.OrderKey = func(_ string, msg *message.Message) (string, error) { trip(msg); return "", nil }
	},
	"Describe": func(r *returning) {
		r.outbox.Describe = func(msg *message.Message) string { trip(msg); return "" }
	},
	"Stamp": func(r *returning) {
		r.outbox.Stamp = func(_ string, msg *message.Message) (string, int64, error) { trip(msg); return "", 0, nil }
	},
	"AfterCommit":         func(r *returning) { r.outbox.AfterCommit = func() { panic("a callback") } },
	"codec of an outcome": func(r *returning) { r.outbox, r.Payloads = nil, jamming{} },
	"received":            func(r *returning) { r.Observers = []inbox.Observer{loud{"received"}} },
	"failed":              func(r *returning) { r.Observers = []inbox.Observer{loud{"failed"}} },
	"completed":           func(r *returning) { r.Observers = []inbox.Observer{loud{"completed"}} },
	"duplicate":           func(r *returning) { r.Observers = []inbox.Observer{loud{"duplicate"}} },
}

var panicOutboxBodies = []testdb.Body{{
	Name: "a callback that panics for what a handler returns", Why: "nothing is held afterwards, and what was committed is what was stored to be sent",
	Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		for name, set := range panickingReturning {
			b.survivesReturning(name, set)
		}
	},
}}

// survivesReturning has two bad messages delivered, twice each, and then a good one.
func (b *bed) survivesReturning(name string, set func(*returning)) {
	b.Helper()
	pool := b.db.Open(b)
	pool.SetMaxOpenConns(3)
	defer pool.Close() //nolint:errcheck // the test is over
	r := returning{&inbox.Config{}, &millrace.Inbox{Consumer: name, Options: inbox.Options{RecordFailures: true}}, &box.Config{}}
	set(&r)
	var err error
	r.Store, err = inbox.NewStore(pool.DB, *r.Config)
	require.NoError(b, err, name)
	if r.outbox != nil && r.Outbox == nil {
		r.Outbox, err = box.NewPublisher(pool.DB, *r.outbox)
		require.NoError(b, err, name)
	}
	router := rig.NewRouter(b)
	router.AddPlugin(r.Store.Plugin())
	router.AddMiddleware(middleware.Recoverer, r.Inbox.Middleware)
	s := b.serve(router, func(msg *message.Message) ([]*message.Message, error) {
		return []*message.Message{message.NewMessage("of "+msg.UUID, msg.Payload)}, apply(msg.Context(), msg.UUID)
	})
	stored, effects := b.count(`SELECT COUNT(*) FROM millrace_outbox`), b.effects()
	for range 2 {
		msg := newMessage(bad)
		msg.Metadata.Set(bad, "yes")
		for range 2 {
			s.deliver(again(msg))
		}
	}
	require.True(b, s.deliver(newMessage("good")), name)
	effects = b.effects() - effects
	assert.Positive(b, effects, name)
	if _, real := r.Outbox.(*box.Publisher); real {
		assert.Equal(b, effects, b.count(`SELECT COUNT(*) FROM millrace_outbox`)-stored, "%s: what is to be sent", name)
		assert.Empty(b, s.published.Messages(), name)
	}
	require.NoError(b, router.Close(), name)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.Context()), 5*time.Second)
	defer cancel()
	require.NoError(b, r.Store.Close(ctx), name)
	assert.Eventually(b, func() bool { return pool.Stats().InUse == 0 }, rig.Patience, time.Millisecond, name)
}
