package tests_test

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/payload"
	millrace "github.com/millrace-go/millrace/middleware"
	box "github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// bad is in the payload of a message whose callbacks panic.
const bad = "bad"

func trip(msg *message.Message) {
	if string(msg.Payload) == bad {
		panic("a callback of the user's")
	}
}

// loud panics where it is told of an event of a bad message, of the kind that is called so.
type loud struct{ kind string }

func (l loud) Observe(_ context.Context, e inbox.Event) {
	if e.Kind.String() == l.kind && e.Metadata[bad] != "" {
		panic("an observer")
	}
}

// jamming is a codec that panics with what is bad.
type jamming struct{}

func (jamming) Seal(_ context.Context, _ payload.Info, payload []byte) ([]byte, error) {
	if string(payload) == bad {
		panic("a codec")
	}
	return payload, nil
}

func (jamming) Open(_ context.Context, _ payload.Info, stored []byte) ([]byte, error) {
	return stored, nil
}

var panicking = map[string]func(*inbox.Config, *millrace.Inbox){
	"Describe": func(_ *inbox.Config, i *millrace.Inbox) {
		i.Describe = func(msg *message.Message) (string, string) { trip(msg); return "", "" }
	},
	"Key": func(_ *inbox.Config, i *millrace.Inbox) {
		i.Key = inbox.ByFunc("id", func(msg *message.Message) (string, error) { trip(msg); return msg.UUID, nil })
	},
	"Fingerprint": func(_ *inbox.Config, i *millrace.Inbox) {
		i.Fingerprint = func(msg *message.Message) ([]byte, error) { trip(msg); return msg.Payload, nil }
	},
	"MessageTime": func(_ *inbox.Config, i *millrace.Inbox) {
		i.MessageTime = func(msg *message.Message) (time.Time, bool) { trip(msg); return time.Time{}, false }
	},
	"Redelivered": func(_ *inbox.Config, i *millrace.Inbox) {
		i.Redelivered = func(msg *message.Message) bool { trip(msg); return false }
	},
	"Before": func(_ *inbox.Config, i *millrace.Inbox) {
		i.Before = func(msg *message.Message) error { trip(msg); return nil }
	},
	"Before fails": func(_ *inbox.Config, i *millrace.Inbox) {
		i.Before = func(msg *message.Message) error {
			if string(msg.Payload) == bad {
				return errBoom
			}
			return nil
		}
		i.Describe = func(msg *message.Message) (string, string) { trip(msg); return "", "" }
	},
	"OnBegin": func(_ *inbox.Config, i *millrace.Inbox) {
		i.OnBegin = func(_ context.Context, _ *sqlx.Tx, msg *message.Message) error { trip(msg); return nil }
	},
	"Skip": func(_ *inbox.Config, i *millrace.Inbox) {
		i.Skip = func(msg *message.Message) bool { trip(msg); return false }
	},
	"payload.Codec":       func(c *inbox.Config, _ *millrace.Inbox) { c.Payloads = jamming{} },
	"observer, received":  func(c *inbox.Config, _ *millrace.Inbox) { c.Observers = []inbox.Observer{loud{"received"}} },
	"observer, failed":    func(c *inbox.Config, _ *millrace.Inbox) { c.Observers = []inbox.Observer{loud{"failed"}} },
	"observer, completed": func(c *inbox.Config, _ *millrace.Inbox) { c.Observers = []inbox.Observer{loud{"completed"}} },
	"observer, forgotten": func(c *inbox.Config, _ *millrace.Inbox) { c.Observers = []inbox.Observer{loud{"forgotten tx"}} },
	"observer, duplicate": func(c *inbox.Config, _ *millrace.Inbox) { c.Observers = []inbox.Observer{loud{"duplicate"}} },
}

// runsOf is what the handler does with a bad message.
var runsOf = map[string]func() error{
	"succeeds": func() error { return nil },
	"fails":    func() error { return errBoom },
	"panics":   func() error { panic("the handler") },
	"exits":    func() error { runtime.Goexit(); return nil },
}

var panicBodies = []testdb.Body{{
	Name: "a callback of the user that panics", Why: "nothing is held afterwards: the next message is handled and the store closes",
	Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		for callback, set := range panicking {
			for how, run := range runsOf {
				b.survives(callback+", the handler "+how, set, run)
			}
		}
	},
}}

// survives has two bad messages delivered, twice each, and then a good one.
func (b *bed) survives(name string, set func(*inbox.Config, *millrace.Inbox), run func() error) {
	b.Helper()
	pool := b.db.Open(b)
	pool.SetMaxOpenConns(3)
	defer pool.Close() //nolint:errcheck // the test is over
	var config inbox.Config
	i := millrace.Inbox{Consumer: name, Options: inbox.Options{RecordFailures: true, TwinWait: rig.Patience}}
	set(&config, &i)
	store := rig.NewStore(b, pool.DB, config)
	i.Store = store
	h := i.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		if string(msg.Payload) == bad {
			return nil, run()
		}
		return effect(msg)
	})
	for range 2 {
		msg := newMessage(bad)
		msg.Metadata.Set(bad, "yes")
		for range 2 {
			b.within(name, func() { _, _ = h(again(msg)) })
		}
	}
	before, err := b.effects(), errBoom
	b.within(name, func() { _, err = h(newMessage("good")) })
	require.NoError(b, err, name)
	assert.Equal(b, before+1, b.effects(), name)
	ctx, cancel := context.WithTimeout(b.Context(), rig.Patience)
	defer cancel()
	require.NoError(b, store.Close(ctx), name)
	assert.Eventually(b, func() bool { return pool.Stats().InUse == 0 }, rig.Patience, time.Millisecond, name)
}

// within does f, in a goroutine that a panic or runtime.Goexit ends, as a router's does.
func (b *bed) within(name string, f func()) {
	b.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { _ = recover() }()
		f()
	}()
	rig.Within(b, done, name+": it hangs")
}

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
	r := returning{&inbox.Config{}, &millrace.Inbox{Consumer: name, Options: inbox.Options{RecordFailures: true, TwinWait: rig.Patience}}, &box.Config{}}
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
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.Context()), rig.Patience)
	defer cancel()
	require.NoError(b, r.Store.Close(ctx), name)
	assert.Eventually(b, func() bool { return pool.Stats().InUse == 0 }, rig.Patience, time.Millisecond, name)
}
