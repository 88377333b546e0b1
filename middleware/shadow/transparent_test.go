package shadow_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/middleware/shadow"
)

// rude is a configuration of functions that panic, and meddle with what they are given.
func rude(logger watermill.LoggerAdapter) shadow.Config {
	meddle := func(msg *message.Message) {
		msg.Ack()
		msg.SetContext(context.Background())
		msg.Metadata["more"] = "1"
		msg.UUID, msg.Payload = "", nil
	}
	return shadow.Config{
		Keys: []inbox.Key{
			inbox.ByFunc("meddles", func(msg *message.Message) (string, error) { meddle(msg); return "x", nil }),
			inbox.ByFunc("panics", func(*message.Message) (string, error) { panic("key") }),
			inbox.ByFunc("fails", func(*message.Message) (string, error) { return "x", errors.New("no") }),
		},
		Versions: map[string]inbox.VersionFunc{
			"meddles": func(msg *message.Message) ([]inbox.Version, error) { meddle(msg); return nil, nil },
			"panics":  func(*message.Message) ([]inbox.Version, error) { panic("version") },
			"twice": func(*message.Message) ([]inbox.Version, error) {
				return []inbox.Version{{Aggregate: "a", Number: 1}, {Aggregate: "a", Number: 2}}, nil
			},
		},
		Logger: logger, LogEvery: 1, Observers: []shadow.Observer{panics{}},
	}
}

type panics struct{ watermill.NopLogger }

func (panics) ObserveShadow(context.Context, string, string, string) { panic("observer") }
func (panics) Info(string, watermill.LogFields)                      { panic("logger") }
func (panics) Error(string, error, watermill.LogFields)              { panic("logger") }
func (p panics) With(watermill.LogFields) watermill.LoggerAdapter    { return p }

// The handler is called with the same message, context and metadata, and what it does comes
// out unchanged, whatever the functions of the configuration do.
func TestHandlerSeesNoDifference(t *testing.T) {
	t.Parallel()
	type mark struct{}
	produced := []*message.Message{message.NewMessage("p", nil)}
	failure := errors.New("boom")
	for name, handler := range map[string]message.HandlerFunc{
		"success":          func(*message.Message) ([]*message.Message, error) { return produced, nil },
		"nothing":          func(*message.Message) ([]*message.Message, error) { return nil, nil },
		"failure":          func(*message.Message) ([]*message.Message, error) { return nil, failure },
		"both":             func(*message.Message) ([]*message.Message, error) { return produced, failure },
		"panic":            func(*message.Message) ([]*message.Message, error) { panic(failure) },
		"panic with nil":   func(*message.Message) ([]*message.Message, error) { panic(nil) }, //nolint:govet // what it is about
		"ack":              func(msg *message.Message) ([]*message.Message, error) { msg.Ack(); return nil, nil },
		"nack":             func(msg *message.Message) ([]*message.Message, error) { msg.Nack(); return nil, nil },
		"another context":  func(msg *message.Message) ([]*message.Message, error) { msg.SetContext(t.Context()); return nil, nil },
		"another metadata": func(msg *message.Message) ([]*message.Message, error) { msg.Metadata.Set("b", "c"); return nil, nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, err := shadow.New(rude(panics{}))
			require.NoError(t, err)
			run := func(wrap message.HandlerMiddleware) outcome {
				msg := message.NewMessage("1", []byte("payload"))
				msg.Metadata.Set("a", "b")
				ctx := context.WithValue(t.Context(), mark{}, name)
				msg.SetContext(ctx)
				var o outcome
				o.recovered = recovered(func() {
					o.produced, o.err = wrap(func(inner *message.Message) ([]*message.Message, error) {
						assert.Same(t, msg, inner)
						assert.Equal(t, ctx, inner.Context())
						assert.Equal(t, message.Metadata{"a": "b"}, inner.Metadata)
						assert.Equal(t, "payload", string(inner.Payload))
						return handler(inner)
					})(msg)
				})
				o.acked, o.nacked = closed(msg.Acked()), closed(msg.Nacked())
				o.metadata, o.replaced = msg.Metadata, msg.Context() != ctx
				return o
			}
			without := run(func(h message.HandlerFunc) message.HandlerFunc { return h })
			for range 3 { // also where it is a copy
				assert.Equal(t, without, run(w.Middleware))
			}
			r := w.Report()
			assert.GreaterOrEqual(t, r.Panics, 3*4, "of a key, a version, an observer and the logger")
			c := r.Consumers[0]
			assert.Equal(t, 3, c.Deliveries)
			assert.Equal(t, 3, key(t, c, `func:"panics"`).Missing)
			assert.Equal(t, 3, key(t, c, `func:"fails"`).Missing)
			assert.Equal(t, 3, key(t, c, "uuid").Deliveries, "others are counted all the same")
			assert.Equal(t, []int{3, 0, 0}, []int{c.Versions[0].Missing, c.Versions[1].Missing, c.Versions[2].Missing})
			assert.Equal(t, []int{0, 3, 3}, []int{c.Versions[0].Invalid, c.Versions[1].Invalid, c.Versions[2].Invalid})
		})
	}
}

type outcome struct {
	produced      []*message.Message
	err           error
	recovered     any
	acked, nacked bool
	metadata      message.Metadata
	replaced      bool
}

func recovered(f func()) (r any) {
	returned := false
	defer func() {
		if r = recover(); r == nil && !returned {
			r = "nil"
		}
	}()
	f()
	returned = true
	return r
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Copies that run at once are counted, and a key that is handled by several goroutines.
func TestCopiesAtOnce(t *testing.T) {
	t.Parallel()
	w, err := shadow.New(shadow.Config{})
	require.NoError(t, err)
	running, end := make(chan struct{}), make(chan struct{})
	slow := w.Middleware(func(*message.Message) ([]*message.Message, error) {
		running <- struct{}{}
		<-end
		return nil, errRun
	})
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() { _, _ = slow(message.NewMessage("1", nil)) })
		<-running
	}
	close(end)
	all.Wait()
	_, _ = w.Middleware(fine)(message.NewMessage("1", nil)) // after three failures
	_, _ = w.Middleware(fine)(message.NewMessage("1", nil))
	c := w.Report().Consumers[0]
	assert.Equal(t, 3, c.AtOnce)
	k := key(t, c, "uuid")
	assert.Equal(t, []int{1, 3, 1, 2}, []int{k.Distinct, k.Duplicates, k.Retries, k.Concurrent},
		"two beside the first, one again after the failures, one copy")
}

// A key that was handled stays so, also if a copy fails: what comes then is no retry.
func TestACopyThatFails(t *testing.T) {
	t.Parallel()
	w, err := shadow.New(shadow.Config{})
	require.NoError(t, err)
	for _, fails := range []bool{true, false, true, false} {
		_, _ = w.Middleware(delivery{fails: fails}.handle)(message.NewMessage("1", nil))
	}
	k := key(t, w.Report().Consumers[0], "uuid")
	assert.Equal(t, []int{1, 2, 1}, []int{k.Distinct, k.Duplicates, k.Retries})
}

// So does a version.
func TestACopyOfAVersionThatFails(t *testing.T) {
	t.Parallel()
	w, err := shadow.New(shadow.Config{})
	require.NoError(t, err)
	for _, fails := range []bool{true, false, true, false} {
		d := delivery{uuid: "1", aggregate: "a", version: 1, fails: fails}
		_, _ = w.Middleware(d.handle)(d.message())
	}
	v := w.Report().Consumers[0].Versions[0]
	assert.Equal(t, []int{1, 2, 1}, []int{v.First, v.Repeated, v.Retries})
}

// Many goroutines lose no delivery, also while the sample shrinks and reports are made.
func TestConcurrentDeliveries(t *testing.T) {
	t.Parallel()
	all, _ := dirty.deliveries(7)
	w, err := shadow.New(shadow.Config{MaxKeys: 2000})
	require.NoError(t, err)
	var next atomic.Int64
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for n := next.Add(1) - 1; int(n) < len(all); n = next.Add(1) - 1 {
				_, _ = w.Middleware(all[n].handle)(all[n].message())
				if n%1000 == 0 {
					assert.NotEmpty(t, w.Report().String())
				}
			}
		})
	}
	workers.Wait()
	c := w.Report().Consumers[0]
	assert.Equal(t, len(all), c.Deliveries)
	for _, k := range c.Keys {
		assert.Equal(t, k.Deliveries, k.Distinct+k.Duplicates+k.Collisions+k.Retries)
		assert.LessOrEqual(t, k.Distinct, 2000)
	}
	truth := truthOf(all)
	assert.Equal(t, truth.versions.missing, c.Versions[0].Missing)
	k := key(t, c, "uuid")
	p := float64(truth.byUUID.duplicates+truth.byUUID.retries) / float64(len(all))
	assert.InDelta(t, p, float64(k.Duplicates+k.Retries)/float64(k.Deliveries), sixSigma(p, k.Distinct),
		"which of the two a copy is depends on which runs first")
}
