package leasetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/lease"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
)

// Bodies are the behaviours.
var Bodies = []Body{
	{"lease: handled once", "a copy of a handled message must not run the handler", handledOnce},
	{"lease: failure then success", "a failed message must not count as handled", failureThenSuccess},
	{"lease: panic frees", "a panic must not keep the key", panicFrees},
	{"lease: crash frees", "a dead process must not keep the key for longer than its lease", crashFrees},
	{"lease: slow loser", "who lost the lease must not confirm, and must say so", slowLoser},
	{"lease: heartbeat", "a handler slower than its lease keeps it", heartbeat},
	{"lease: copy waits for a success", "a copy of a message in flight waits, and is then a duplicate", copyWaitsForSuccess},
	{"lease: copy waits for a failure", "a copy of a message in flight waits, and handles it if the first fails", copyWaitsForFailure},
	{"lease: copy times out", "waiting is bounded, and ends in a nack", copyTimesOut},
	{"lease: tokens", "only the holder may confirm, extend or release", tokens},
	{"lease: consumers are apart", "one message is for every consumer and epoch", consumersApart},
	{"lease: keys are exact", "different keys must never be taken for one", exactKeys},
	{"lease: no key", "a message without a key must be refused", noKey},
	{"lease: answered before", "a message that was acked already cannot be redelivered", answeredBefore},
	{"lease: nacked by its handler", "a message that is redelivered must not count as handled", nackedByHandler},
	{"lease: forgets after retention", "a key is not kept for longer than asked", forgets},
	{"lease: produced messages", "a message counts as handled when what it produced is published", produced},
	{"lease: close waits", "a key must be confirmed before the store's client is closed", closing},
	{"lease: lost answers", "an answer of the store that got lost must not lose or repeat a message", lostAnswers},
	{"lease: concurrency", "every effect once, whatever is delivered at once and fails", concurrency},
}

var errBoom = errors.New("boom")

func handledOnce(t *testing.T, open Open) {
	var c counter
	p, other := start(t, open(t)), start(t, open(t))
	for _, h := range []message.HandlerFunc{p.wrap(c.handle), p.wrap(c.handle), other.wrap(c.handle)} {
		require.NoError(t, deliver(h, "a"))
	}
	assert.Equal(t, 1, c.of("a"))
	assert.Equal(t, 1, p.events.count("duplicate"))
	assert.Equal(t, 1, other.events.count("duplicate"))
	assert.Equal(t, 1, p.events.count("completed"))
}

func failureThenSuccess(t *testing.T, open Open) {
	var c counter
	fail := true
	p := start(t, open(t))
	h := p.wrap(func(msg *message.Message) ([]*message.Message, error) {
		if fail {
			return []*message.Message{msg.Copy()}, errBoom
		}
		return c.handle(msg)
	})
	for range 2 {
		requireDelivery(t, deliver(h, "a"), errBoom)
	}
	fail = false
	for range 2 {
		require.NoError(t, deliver(h, "a"))
	}
	assert.Equal(t, 1, c.of("a"))
	assert.Equal(t, 2, p.events.count("failed"))
}

func panicFrees(t *testing.T, open Open) {
	var c counter
	p := start(t, open(t))
	bad := p.wrap(func(*message.Message) ([]*message.Message, error) { panic("boom") })
	assert.PanicsWithValue(t, "boom", func() { _ = deliver(bad, "a") })

	gone := p.wrap(func(*message.Message) ([]*message.Message, error) { runtime.Goexit(); return nil, nil })
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = deliver(gone, "a")
	}()
	<-ended
	require.NoError(t, deliver(p.wrap(c.handle), "a"))
	assert.Equal(t, 1, c.of("a"))
}

func crashFrees(t *testing.T, open Open) {
	var c counter
	g := newGate()
	dead, p := start(t, frozen{open(t)}), start(t, open(t))
	began := time.Now()
	done := g.begin(t, dead.wrap(g.handle, lasting(1500*time.Millisecond)))
	require.NoError(t, deliver(p.wrap(c.handle, patient), "a"))
	assert.Equal(t, 1, c.of("a"))
	assert.Greater(t, time.Since(began), 1400*time.Millisecond, "the lease was not respected")
	g.result <- errBoom
	require.ErrorIs(t, <-done, errBoom)
	require.NoError(t, deliver(p.wrap(c.handle), "a"))
	assert.Equal(t, 1, c.of("a"), "the dead process released what is not its own")
}

func slowLoser(t *testing.T, open Open) {
	var c counter
	g := newGate()
	slow, p := start(t, frozen{open(t)}), start(t, open(t))
	done := g.begin(t, slow.wrap(g.handle, lasting(time.Second)))
	require.NoError(t, deliver(p.wrap(c.handle, patient), "a"))
	g.result <- nil
	requireDelivery(t, <-done, inbox.ErrLeaseLost)
	assert.Equal(t, 1, slow.events.count("double effect"))
	assert.Zero(t, slow.events.count("completed"))
	assert.Zero(t, p.events.count("double effect"))
	require.NoError(t, deliver(slow.wrap(c.handle), "a"))
	assert.Equal(t, 1, c.of("a"), "the winner's confirmation did not stand")
}

func heartbeat(t *testing.T, open Open) {
	for lasts := 3 * time.Second; !outlived(t, open, lasts); lasts *= 2 {
		require.Less(t, lasts, 20*time.Second, "the lease was lost")
	}
}

// outlived has a handler run until its lease was extended four times, which is for longer than it lasts, and
// reports whether a copy still finds the key taken.
func outlived(t *testing.T, open Open, lasts time.Duration) bool {
	t.Helper()
	var c counter
	g := newGate()
	store := &beating{open(t), make(chan error, 4)}
	slow, p := start(t, store), start(t, open(t))
	fresh := func(d *millrace.Deduplicate) { d.Epoch = int(lasts.Seconds()) }
	done := g.begin(t, slow.wrap(g.handle, fresh, lasting(lasts)))
	for range cap(store.extended) {
		if rig.Within(t, store.extended, "a heartbeat") != nil {
			g.result <- nil
			if err := <-done; err != nil { // a store may still confirm what nobody else took
				require.ErrorIs(t, err, inbox.ErrLeaseLost)
			}
			return false
		}
	}
	err := deliver(p.wrap(c.handle, fresh, wait(time.Millisecond)), "a")
	g.result <- nil
	if err == nil {
		require.ErrorIs(t, <-done, inbox.ErrLeaseLost)
		return false
	}
	requireDelivery(t, err, inbox.ErrInProgress)
	require.NoError(t, <-done)
	require.NoError(t, deliver(p.wrap(c.handle, fresh), "a"))
	assert.Zero(t, c.of("a"))
	assert.Zero(t, slow.events.count("double effect"))
	return true
}

func copyWaitsForSuccess(t *testing.T, open Open) {
	copyWaits(t, open, nil, 0)
}

func copyWaitsForFailure(t *testing.T, open Open) {
	copyWaits(t, open, errBoom, 1)
}

// copyWaits delivers a copy in the same process and one in another while the first is
// being handled, and then lets the first end with result.
func copyWaits(t *testing.T, open Open, result error, runs int) {
	t.Helper()
	var c counter
	g := newGate()
	store := newSpy(open(t))
	first, other := start(t, open(t)), start(t, store)
	done := g.begin(t, first.wrap(g.handle))
	copies := make(chan error, 2)
	go func() { copies <- deliver(other.wrap(c.handle, patient), "a") }()
	go func() { copies <- deliver(first.wrap(c.handle, patient), "a") }()
	<-store.held
	assert.Zero(t, c.of("a"))
	g.result <- result
	require.ErrorIs(t, <-done, result)
	for range 2 {
		require.NoError(t, <-copies)
	}
	assert.Equal(t, runs, c.of("a"))
}

func copyTimesOut(t *testing.T, open Open) {
	var c counter
	g := newGate()
	first, other := start(t, open(t)), start(t, open(t))
	done := g.begin(t, first.wrap(g.handle))
	for _, p := range []*process{first, other} {
		requireDelivery(t, deliver(p.wrap(c.handle, wait(50*time.Millisecond)), "a"), inbox.ErrInProgress)
	}
	g.result <- errBoom
	require.ErrorIs(t, <-done, errBoom)
	require.NoError(t, deliver(other.wrap(c.handle), "a"))
	assert.Equal(t, 1, c.of("a"))
}

// tokens asks the store itself.
func tokens(t *testing.T, open Open) {
	ctx, store, other := t.Context(), open(t), open(t)
	key := lease.Key{Consumer: "mailer", Source: "uuid", ID: "\x02a"}
	status := func(token int64) lease.Status {
		t.Helper()
		state, err := other.Acquire(ctx, key, token, time.Minute)
		require.NoError(t, err)
		require.Positive(t, state.Remaining)
		require.LessOrEqual(t, state.Remaining, time.Hour)
		return state.Status
	}
	extend := other.(lease.Extender).Extend
	assert.Equal(t, lease.Taken, status(1))
	assert.Equal(t, lease.Held, status(2))
	require.NoError(t, store.Release(ctx, key, 2))
	assert.Equal(t, lease.Held, status(2), "released by another")
	require.ErrorIs(t, store.Confirm(ctx, key, 2, time.Hour), inbox.ErrLeaseLost)
	require.ErrorIs(t, extend(ctx, key, 2, time.Hour), inbox.ErrLeaseLost)
	require.NoError(t, extend(ctx, key, 1, time.Hour))
	require.NoError(t, store.Release(ctx, key, 1))
	assert.Equal(t, lease.Taken, status(2))
	require.ErrorIs(t, store.Confirm(ctx, key, 1, time.Hour), inbox.ErrLeaseLost)
	require.NoError(t, store.Confirm(ctx, key, 2, time.Hour))
	require.NoError(t, store.Release(ctx, key, 2))
	require.ErrorIs(t, extend(ctx, key, 2, time.Hour), inbox.ErrLeaseLost)
	assert.Equal(t, lease.Confirmed, status(3))
}

func consumersApart(t *testing.T, open Open) {
	var mailer, pusher, again counter
	p := start(t, open(t))
	epoch := func(d *millrace.Deduplicate) { d.Epoch = 1 }
	for _, h := range []message.HandlerFunc{
		p.wrap(mailer.handle), p.wrap(pusher.handle, consumer("pusher")), p.wrap(again.handle, epoch),
	} {
		for range 2 {
			require.NoError(t, deliver(h, "a"))
		}
	}
	assert.Equal(t, []int{1, 1, 1}, []int{mailer.of("a"), pusher.of("a"), again.of("a")})

	g := newGate() // nor do they wait for each other
	done := g.begin(t, p.wrap(g.handle, consumer("slow")))
	require.NoError(t, deliver(p.wrap(pusher.handle, consumer("quick"), wait(time.Millisecond)), "a"))
	g.result <- nil
	require.NoError(t, <-done)
}

func exactKeys(t *testing.T, open Open) {
	var c counter
	h := start(t, open(t)).wrap(c.handle)
	long := strings.Repeat("k", 700)
	keys := []string{
		"k", "K", "k ", " k", "k\x00", "\x00", "\xff\xfe", "é", "e\u0301", "k%", "k_", "'", "{}", "a:b", "1:a",
		long, long + "k", long + "l",
		"0194fdc2-fa2f-4cc0-81d3-ff12045b73c8", "0194FDC2-FA2F-4CC0-81D3-FF12045B73C8",
		"0194fdc2fa2f4cc081d3ff12045b73c8", "\x01\x94\xfd\xc2",
	}
	for range 2 {
		for _, key := range keys {
			require.NoError(t, deliver(h, key))
		}
	}
	for _, key := range keys {
		assert.Equal(t, 1, c.of(key), "%q", key)
	}
}

func noKey(t *testing.T, open Open) {
	var c counter
	p := start(t, open(t))
	err := deliver(p.wrap(c.handle), "")
	require.ErrorContains(t, err, "no UUID")
	byField := func(d *millrace.Deduplicate) { d.Key, d.Epoch = inbox.ByMetadata("order"), 1 }
	require.ErrorContains(t, deliver(p.wrap(c.handle, byField), "a"), `"order"`)
	assert.Zero(t, c.of("")+c.of("a"))
}

func forgets(t *testing.T, open Open) {
	var c counter
	h := start(t, open(t)).wrap(c.handle, func(d *millrace.Deduplicate) { d.Retention = 300 * time.Millisecond })
	began := time.Now()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for ; c.of("a") < 2; <-look.C {
		require.NoError(t, deliver(h, "a"))
		if c.of("a") == 2 {
			assert.Greater(t, time.Since(began), 250*time.Millisecond, "forgotten too early")
		}
		require.Less(t, time.Since(began), rig.Patience, "never forgotten")
	}
}

func produced(t *testing.T, open Open) {
	var c counter
	p := start(t, open(t))
	h := p.wrap(func(msg *message.Message) ([]*message.Message, error) {
		_, _ = c.handle(msg)
		return []*message.Message{message.NewMessage("out", nil)}, nil
	})
	first := message.NewMessage("a", nil)
	out, err := h(first)
	require.NoError(t, err)
	require.Len(t, out, 1)
	first.Nack() // the router could not publish

	second := message.NewMessage("a", nil)
	out, err = h(second)
	require.NoError(t, err)
	require.Len(t, out, 1, "what was produced is lost")
	second.Ack()

	out, err = h(message.NewMessage("a", nil))
	require.NoError(t, err)
	assert.Empty(t, out)
	assert.Equal(t, 2, c.of("a"))
	// Copies go on before observers are told.
	rig.Eventually(t, "completed", func() bool { return p.events.count("completed") == 1 })
}

func lostAnswers(t *testing.T, open Open) {
	var c counter
	p := start(t, &lossy{Store: open(t), acquires: 1, confirm: 1})
	h := p.wrap(c.handle)
	requireDelivery(t, deliver(h, "a"), errAnswerLost)
	for range 2 {
		require.NoError(t, deliver(h, "a"))
	}
	assert.Equal(t, 1, c.of("a"))
	assert.Zero(t, p.events.count("double effect"))
}

func concurrency(t *testing.T, open Open) {
	const workers, ids = 16, 200
	var c counter
	h := make([]message.HandlerFunc, 2)
	for i := range h {
		h[i] = start(t, open(t)).wrap(func(msg *message.Message) ([]*message.Message, error) {
			if rand.IntN(3) == 0 { //nolint:gosec // chance is all that is wanted
				return nil, errBoom
			}
			return c.handle(msg)
		}, patient)
	}
	var deliveries []string
	for i := range ids {
		id := fmt.Sprintf("message-%d", i)
		deliveries = append(deliveries, id, id)
	}
	rand.Shuffle(len(deliveries), func(i, j int) { deliveries[i], deliveries[j] = deliveries[j], deliveries[i] })
	queue := make(chan string, len(deliveries))
	for _, id := range deliveries {
		queue <- id
	}
	close(queue)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for id := range queue {
				err := deliver(h[w%2], id)
				// Redelivered, also where many writers of SQLite and a busy disk left no turn in time.
				for errors.Is(err, errBoom) || errors.Is(err, context.DeadlineExceeded) {
					err = deliver(h[w%2], id)
				}
				assert.NoError(t, err)
			}
		})
	}
	wg.Wait()
	slices.Sort(deliveries)
	for _, id := range slices.Compact(deliveries) {
		assert.Equal(t, 1, c.of(id), id)
	}
}
