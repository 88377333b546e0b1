package gate_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestFunctionsThatPanic(t *testing.T) {
	t.Parallel()
	testdb.Conformance(t, panicBodies)
}

// bad is in the metadata of a message with which functions of the service panic.
const bad = "bad"

func trip(msg *message.Message) {
	if msg.Metadata[bad] != "" {
		panic("a function of the service")
	}
}

var panicking = map[string]func(*inbox.Config, *millrace.VersionGate){
	"Version": func(_ *inbox.Config, g *millrace.VersionGate) {
		of := inbox.VersionFromMetadata()
		g.Version = func(msg *message.Message) ([]inbox.Version, error) { trip(msg); return of(msg) }
	},
	"Starts": func(_ *inbox.Config, g *millrace.VersionGate) {
		g.Starts = func(msg *message.Message) bool { trip(msg); return false }
	},
	"Starts the second time": func(_ *inbox.Config, g *millrace.VersionGate) {
		var mu sync.Mutex // a queue delivers several at a time
		calls := map[string]int{}
		g.Starts = func(msg *message.Message) bool {
			mu.Lock()
			calls[msg.UUID]++
			again := calls[msg.UUID] > 1
			mu.Unlock()
			if again {
				trip(msg)
			}
			return false
		}
	},
	"stale": tells(inbox.KindStale), "gap": tells(inbox.KindGap), "held": tells(inbox.KindHeld), "released": tells(inbox.KindReleased),
	"collision": tells(inbox.KindCollision), "parked": tells(inbox.KindParked), "completed": tells(inbox.KindCompleted),
	"failed": tells(inbox.KindFailed),
}

// tells has an observer panic that is told of one kind of event of a bad message.
func tells(kind inbox.Kind) func(*inbox.Config, *millrace.VersionGate) {
	loud := inbox.On(func(_ context.Context, e inbox.Event) {
		if e.Metadata[bad] != "" {
			panic("an observer")
		}
	}, kind)
	return func(c *inbox.Config, _ *millrace.VersionGate) { c.Observers = []inbox.Observer{loud} }
}

var panicBodies = []testdb.Body{
	{Name: "a function of the service that panics at the gate", Why: "its aggregate is not locked, and others are not concerned", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		for name, set := range panicking {
			for gap, onGap := range map[string]inbox.OnGap{"hold": inbox.GapHold, "fail": inbox.GapFail, "latest": inbox.GapLatest} {
				b.survives(name+", "+gap, onGap, set)
			}
		}
	}},
	{Name: "a function of the service that panics at the gate of a queue", Why: "the message is tried again and then waits for an operator", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		for _, name := range []string{"Version", "Starts", "Starts the second time", "held", "released", "completed"} {
			var config inbox.Config
			var gate millrace.VersionGate
			panicking[name](&config, &gate)
			store := rig.NewStore(t, db.DB, config)
			s := b.service(store, gate, handler)
			first, second := change(name, 1), change(name, 2)
			first.Metadata.Set(bad, "yes")
			second.Metadata.Set(bad, "yes")
			good := change(name+", good", 1)
			s.publish(second, first, good)
			rig.Eventually(b, name, func() bool { return len(b.applied(name+", good")) == 1 })
			require.NoError(t, s.router.Close(), name)
			b.closes(name, store)
		}
	}},
}

// survives has bad messages of one aggregate delivered, and then good ones of this one and another.
func (b *bed) survives(name string, onGap inbox.OnGap, set func(*inbox.Config, *millrace.VersionGate)) {
	b.Helper()
	pool := b.db.Open(b)
	pool.SetMaxOpenConns(3)
	defer pool.Close() //nolint:errcheck // the test is over
	var config inbox.Config
	gate := millrace.VersionGate{OnGap: onGap}
	set(&config, &gate)
	store := rig.NewStore(b, pool.DB, config)
	b.queued(store)
	h := middleware.Recoverer(b.gated(store, gate, func(msg *message.Message) ([]*message.Message, error) {
		if msg.Metadata["fails"] != "" {
			return nil, assert.AnError
		}
		return handler(msg)
	}))
	fails := change(name, 1)
	fails.Metadata.Set("fails", "yes")
	last, first := change(name, 3), change(name, 1)
	for _, msg := range []*message.Message{fails, last, last, change(name, 2), first, first, change(name, 1)} {
		msg.Metadata.Set(bad, "yes")
		b.within(name, func() { _, _ = h(again(msg)) })
	}
	for _, aggregate := range []string{name + ", another", name} {
		v := int64(1)
		if applied := b.applied(aggregate); len(applied) > 0 {
			v = applied[len(applied)-1] + 1
		}
		b.within(name, func() {
			_, err := h(change(aggregate, v))
			assert.NoError(b, err, name)
		})
		want := upTo(v)
		if applied := b.applied(aggregate); onGap == inbox.GapLatest { // which leaves some out
			want = slices.Concat(applied[:len(applied)-1], []int64{v})
		}
		assert.Equal(b, want, b.applied(aggregate), name)
	}
	b.closes(name, store)
	assert.Eventually(b, func() bool { return pool.Stats().InUse == 0 }, rig.Patience, time.Millisecond, name)
}

func (b *bed) closes(name string, store *inbox.Store) {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.Context()), rig.Patience)
	defer cancel()
	require.NoError(b, store.Close(ctx), name)
}

// within does f, which must not hang.
func (b *bed) within(name string, f func()) {
	b.Helper()
	require.NoError(b, rig.Within(b, rig.Go(func() error { f(); return nil }), name+": it hangs"))
}
