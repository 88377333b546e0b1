package durable_test

import (
	"context"
	"errors"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/inbox/payload"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestFunctionsThatPanic(t *testing.T) { testdb.Conformance(t, panicBodies) }

// bad is in the metadata of a message with which functions of the service panic, and its payload
// begins with it.
const bad = "bad"

func isBad(msg *message.Message) bool { return msg.Metadata[bad] != "" }

func trip(is bool) {
	if is {
		panic("a function of the service")
	}
}

// loud is an observer that panics where it is told of one kind of event of a bad message.
func loud(kind inbox.Kind) inbox.Observer {
	return inbox.On(func(_ context.Context, e inbox.Event) {
		trip(e.Metadata[bad] != "" || kind == inbox.KindReclaimed) // those have none
	}, kind)
}

// codec panics with what is bad where it is to be sealed, or opened.
type codec struct{ seals, opens bool }

func (c codec) Seal(_ context.Context, info payload.Info, payload []byte) ([]byte, error) {
	trip(c.seals && info.Metadata[bad] != "")
	return payload, nil
}

func (c codec) Open(_ context.Context, info payload.Info, stored []byte) ([]byte, error) {
	trip(c.opens && info.Metadata[bad] != "")
	return stored, nil
}

// ring is a key with which AESGCM panics where it seals, or opens, what is bad.
type ring struct {
	payload.KeyRing
	seals, opens bool
}

func newRing(seals, opens bool) ring {
	return ring{payload.KeyRing{Current: "k", Keys: map[string][]byte{"k": make([]byte, 32)}}, seals, opens}
}

func (r ring) SealKey(ctx context.Context, info payload.Info) (string, []byte, error) {
	trip(r.seals && info.Metadata[bad] != "")
	return r.KeyRing.SealKey(ctx, info)
}

func (r ring) OpenKey(ctx context.Context, info payload.Info, id string) ([]byte, error) {
	trip(r.opens && info.Metadata[bad] != "")
	return r.KeyRing.OpenKey(ctx, info, id)
}

// brittle is a directory of blobs of which one method panics.
type brittle struct {
	payload.Blobs
	method string
}

func (b brittle) Put(ctx context.Context, name string, body []byte) error {
	trip(b.method == "Put" && strings.HasPrefix(string(body), bad))
	return b.Blobs.Put(ctx, name, body)
}

func (b brittle) Get(ctx context.Context, name string) ([]byte, error) {
	body, err := b.Blobs.Get(ctx, name)
	trip(b.method == "Get" && strings.HasPrefix(string(body), bad))
	return body, err
}

func (b brittle) Delete(ctx context.Context, name string) error {
	trip(b.method == "Delete")
	return b.Blobs.Delete(ctx, name)
}

func (b brittle) List(ctx context.Context, after, before string, limit int) ([]string, error) {
	trip(b.method == "List")
	return b.Blobs.List(ctx, after, before, limit)
}

// hoarse is a logger that panics, whatever it is to say.
type hoarse struct{}

func (hoarse) Error(string, error, watermill.LogFields)         { panic("a logger") }
func (hoarse) Info(string, watermill.LogFields)                 { panic("a logger") }
func (hoarse) Debug(string, watermill.LogFields)                { panic("a logger") }
func (hoarse) Trace(string, watermill.LogFields)                { panic("a logger") }
func (hoarse) With(watermill.LogFields) watermill.LoggerAdapter { panic("a logger") }

// faulty is an error whose methods panic, since it is none: what a function returns that means nil.
type faulty struct{ cause error }

func (f *faulty) Error() string { return f.cause.Error() }
func (f *faulty) Unwrap() error { return f.cause }

type settings struct {
	*inbox.Config
	*pubsub.Durable
	*testing.T
}

// panickings are the functions of the service that a queue calls.
var panickings = map[string]func(s settings){
	"Key": func(s settings) {
		s.Key = inbox.ByFunc("id", func(msg *message.Message) (string, error) { trip(isBad(msg)); return msg.UUID, nil })
	},
	"Fingerprint": func(s settings) {
		s.Fingerprint = func(msg *message.Message) ([]byte, error) { trip(isBad(msg)); return msg.Payload, nil }
	},
	"OrderKey": func(s settings) {
		s.Mode = pubsub.StoreFirst
		s.OrderKey = func(msg *message.Message) (string, error) { trip(isBad(msg)); return "one", nil }
		s.OnParked = inbox.Continue
	},
	"OnPark": func(s settings) {
		s.OnPark = func(msg *message.Message, _ string) error { trip(isBad(msg)); return nil }
	},
	"NotBefore": func(s settings) {
		s.NotBefore = func(msg *message.Message) time.Time { trip(isBad(msg)); return time.Time{} }
	},
	"Classify":              func(s settings) { s.Classify = func(err error) error { trip(errors.Is(err, errBoom)); return err } },
	"Classify returns none": func(s settings) { s.Classify = func(error) error { return nil } },
	"Classify returns a nil pointer": func(s settings) {
		s.Classify = func(error) error { return (*faulty)(nil) }
	},
	"Redelivered": func(s settings) {
		s.Durable.Redelivered = func(msg *message.Message) bool { trip(isBad(msg)); return false }
	},
	"Seal":     func(s settings) { s.Payloads = codec{seals: true} },
	"Open":     func(s settings) { s.Payloads = codec{opens: true} },
	"SealKey":  func(s settings) { s.aes(newRing(true, false)) },
	"OpenKey":  func(s settings) { s.aes(newRing(false, true)) },
	"Put":      func(s settings) { s.files("Put") },
	"Get":      func(s settings) { s.files("Get") },
	"Delete":   func(s settings) { s.files("Delete") },
	"List":     func(s settings) { s.files("List") },
	"received": observed(inbox.KindReceived), "failed": observed(inbox.KindFailed), "completed": observed(inbox.KindCompleted),
	"forgotten": observed(inbox.KindForgottenTx), "duplicate": observed(inbox.KindDuplicate), "parked": observed(inbox.KindParked),
	"retried": observed(inbox.KindRetried), "collision": observed(inbox.KindCollision), "replayed": observed(inbox.KindReplayed),
	"Logger": func(s settings) { s.Logger = hoarse{} },
}

func observed(kind inbox.Kind) func(settings) {
	return func(s settings) { s.Observers = []inbox.Observer{loud(kind)} }
}

func (s settings) aes(keys payload.Keys) {
	codec, err := payload.NewAESGCM(keys)
	require.NoError(s, err)
	s.Payloads = codec
}

func (s settings) files(method string) {
	files, err := payload.NewFileBlobs(s.TempDir())
	require.NoError(s, err)
	s.Blobs, s.BlobsAbove, s.BlobGrace = brittle{files, method}, 1, time.Minute
}

// runsOf is what the handler does with a bad message.
var runsOf = map[string]message.NoPublishHandlerFunc{
	"succeeds":              effect,
	"fails":                 func(*message.Message) error { return errBoom },
	"fails for good":        func(*message.Message) error { return inbox.Terminal(errBoom) },
	"returns a nil pointer": func(*message.Message) error { return (*faulty)(nil) },
	"panics":                func(*message.Message) error { panic("the handler") },
	"ends its goroutine":    func(*message.Message) error { runtime.Goexit(); return nil },
}

var panicBodies = func() (bodies []testdb.Body) {
	for name, set := range panickings {
		bodies = append(bodies, testdb.Body{
			Name: name + " panics in a queue", Why: "the process, the queue and its messages outlive it",
			Run: func(t *testing.T, db *testdb.DB) {
				b := newBed(t, db)
				var plays []func()
				for _, mode := range slices.Sorted(maps.Keys(modes)) {
					for _, how := range slices.Sorted(maps.Keys(runsOf)) {
						plays = append(plays, func() { b.survives(name+", "+modes[mode]+", the handler "+how, mode, set, runsOf[how]) })
					}
				}
				for _, play := range testdb.Sample(t, 1, plays) {
					play()
				}
			},
		})
	}
	return bodies
}()

// survives has bad messages delivered and then a good one.
func (b *bed) survives(name string, mode pubsub.Mode, set func(settings), run message.NoPublishHandlerFunc) {
	b.Helper()
	pool := b.db.Open(b)
	pool.SetMaxOpenConns(3)
	defer pool.Close() //nolint:errcheck // the test is over
	config := inbox.Config{PurgeInterval: 20 * time.Millisecond}
	durable := quick(nil)
	durable.Consumer, durable.Mode, durable.MaxAttempts = name, mode, 2
	set(settings{&config, &durable, b.T})
	store := rig.NewStore(b, pool.DB, config)
	durable.Store = store
	s := b.start(durable, silent(func(msg *message.Message) error {
		if isBad(msg) {
			return run(msg)
		}
		return effect(msg)
	}), middleware.Recoverer, millrace.Inbox{Store: store, Consumer: name, Key: durable.Key}.Middleware)

	function, _, _ := strings.Cut(name, ",")
	first := newBad(bad)
	collides := first.Copy()
	collides.Payload = []byte(bad + ", and another")
	replayed := newBad(bad + ", replayed")
	replayed.Metadata.Set(inbox.ReplayField, "a replay")
	for _, msg := range []*message.Message{first, first, collides, replayed, replayed} {
		if s.deliver(msg) {
			stored := b.count(`SELECT COUNT(*) FROM millrace_messages WHERE uuid = ?`, []byte(msg.UUID)) // it may be handled now
			assert.Positive(b, stored+b.effects(msg), "%s: a message is lost", name)
		} else {
			assert.True(b, unstorable[function], "%s: a message went back to its source", name)
		}
	}
	for range 2 {
		good := newMessage()
		require.True(b, s.deliver(good), name)
		rig.Eventually(b, name+": a good message is handled", func() bool { return b.effects(good) == 1 })
	}
	if !unopenable[function] { // without another payload that was opened, that may be an outage of the keys: it is tried on
		rig.Eventually(b, name+": each bad message was handled, or waits for an operator", func() bool {
			return b.count(`SELECT COUNT(*) FROM millrace_messages WHERE status NOT IN (?, ?)`, int(admin.FailedTerminal), int(admin.Parked)) == 0
		})
	}
	require.NoError(b, s.router.Close(), name)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.Context()), rig.Patience)
	defer cancel()
	require.NoError(b, store.Close(ctx), name)
	rig.Eventually(b, name+": no connection is in use", func() bool { return pool.Stats().InUse == 0 })
	b.db.Do(b, `DELETE FROM millrace_messages`) // else those that come last wait for the others
}

func newBad(payload string) *message.Message {
	msg := newMessage()
	msg.Payload = []byte(payload)
	msg.Metadata.Set(bad, "yes")
	return msg
}

// TestAnErrorThatWrapsANilPointer must not end the process: in a queue nobody recovers for it.
func TestAnErrorThatWrapsANilPointer(t *testing.T) {
	t.Parallel()
	b := newBed(t, testdb.On(t, "sqlite"))
	durable := storeFirst(b.store)
	durable.MaxAttempts = 2
	b.inboxed(durable, func(*message.Message) error { return hollow{} }).parks(newMessage())
}

// hollow is an error that wraps no error, and a nil pointer that looks like one.
type hollow struct{}

func (hollow) Error() string { return "hollow" }
func (hollow) Unwrap() error { return (*faulty)(nil) }

// Without some functions a message cannot be stored, and goes back to its source. Without others it cannot be opened.
var (
	unstorable = map[string]bool{"Put": true, "Seal": true, "SealKey": true}
	unopenable = map[string]bool{"Get": true, "Open": true, "OpenKey": true}
)
