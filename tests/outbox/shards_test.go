package outbox_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// The shards are many, but one statement takes them all, and one gives up what another relay is to have.
func TestShardsAreTakenAndGivenUpTogether(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		p := newPost(t, db)
		m := p.prepare("one")
		var n atomic.Int64
		m.db.Set(on(func(context.Context) error { n.Add(1); return nil }, claims...))
		m.running = start(t, m.Relay)
		p.shared(m)
		assert.EqualValues(t, 1, n.Load())
		p.shared(m, p.member("two"))
		assert.EqualValues(t, 2, n.Load())
	})
}

// Relays that join share the work; one that is stopped leaves it to the others at once,
// and not when its lease ends.
func TestAStoppedRelayIsReplacedAtOnce(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		p := newPost(t, db)
		first := p.member("first", leased(time.Hour)) // longer than a test waits for anything
		second := p.member("second", leased(time.Hour))
		p.shared(first, second)

		require.NoError(t, first.stop())
		_, all := p.spread(32, 1)
		p.broker.awaitAll(t, all)
		p.shared(second)
		p.onceEach()
	})
}

// The answer to the taking of shards gets lost. The relay owns them, and works on them.
func TestShardsTakenWithoutAnAnswerAreWorkedOn(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		p := newPost(t, db)
		m := p.prepare("one")
		var lost atomic.Int64
		lose := func(ctx context.Context, call string) error {
			if says(call, claims...) && lost.Add(1) == 1 {
				return faults.ErrLost
			}
			return nil
		}
		m.db.Set(faults.Plan{After: lose})
		m.running = start(t, m.Relay)
		_, all := p.spread(64, 1)
		p.broker.awaitAll(t, all)
		assert.Positive(t, lost.Load(), "no answer was lost")
		p.shared(m)
		p.shared(m, p.member("two"))
	})
}

// The database hangs on one statement of the relay's keeper, as on a connection that died
// without a word. The relay does not hang with it.
func TestAStatementWithoutAnswerStopsNoRelay(t *testing.T) {
	t.Parallel()
	for _, s := range testdb.Sample(t, 2, []struct {
		name  string
		words []string
	}{
		{"make the shards", []string{"INTO millrace_outbox_layout"}},
		{"register", []string{"INTO millrace_outbox_relays"}},
		{"beat", beats},
		{"forget the dead", []string{"SELECT COUNT(*) FROM millrace_outbox_relays"}},
		{"read the relays", []string{"SELECT token FROM millrace_outbox_relays"}},
		{"take shards", claims},
	}) {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			p := newPost(t, testdb.On(t, "sqlite"))
			m := p.prepare("one", leased(5*time.Second)) // it waits for half of that
			var hung atomic.Int64
			m.db.Set(on(func(ctx context.Context) error {
				if hung.Add(1) > 1 {
					return nil
				}
				<-ctx.Done()
				return fmt.Errorf("no answer: %w", ctx.Err())
			}, s.words...))
			m.running = start(t, m.Relay)
			rig.Eventually(p, "it was tried again", func() bool { return hung.Load() > 1 })
			p.shared(m)
			_, all := p.spread(16, 1)
			p.broker.awaitAll(t, all)
		})
	}
}

// underWay is a relay whose calls to the broker have messages of all shards, and wait,
// while another relay has joined and is to have half of the shards.
func underWay(p *post) (first, second *member, all []string) {
	p.Helper()
	first = p.member("first")
	p.shared(first)
	first.link.block()
	_, all = p.spread(64, 1)
	rig.Eventually(p, "every lane is busy", func() bool { return first.link.blocked() == 4 })
	second = p.member("second")
	rig.Eventually(p, "the first gives up half", func() bool { return first.share() == shards/2 })
	return first, second, all
}

// A shard is handed over when nothing of it is under way any more, and not before.
func TestWhatIsUnderWayIsNotHandedOver(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		p := newPost(t, db)
		first, second, all := underWay(p)
		var looks atomic.Int64
		second.db.Set(on(func(context.Context) error { looks.Add(1); return nil }, "SELECT shard, owner"))
		rig.Eventually(p, "the second looks for shards", func() bool { return looks.Load() >= 3 })
		assert.Zero(t, p.owners()["second"])
		assert.Empty(t, p.broker.deliveries())

		first.link.open(nil)
		p.broker.awaitAll(t, all)
		p.shared(first, second)
		p.onceEach()
	})
}

// A relay that does not get through to the broker still gives up what it is to give up.
func TestAShardIsHandedOverInAnOutage(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		p := newPost(t, db)
		first, second, all := underWay(p)
		first.link.open(errRefused)
		p.shared(first, second)
		assert.NotEmpty(t, first.seen.of("outage"))
		require.NoError(t, first.stop())
		p.broker.awaitAll(t, all)
		p.onceEach()
	})
}

// A relay died between two statements: messages are held back, and nothing blocks them.
// They are sent before what was stored since.
func TestWhatIsHeldBackByNothingGoesFirst(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		p := newPost(t, db)
		want, all := p.spread(16, 3)
		db.Do(t, `UPDATE millrace_outbox SET status = 2, blocked_key = key_hash`)
		later, more := p.spread(16, 3)
		for key, ids := range later {
			want[key] = append(want[key], ids...)
		}
		p.member("one")
		p.broker.awaitAll(t, append(all, more...))
		p.inOrder(want)
		p.onceEach()
	})
}

// What waits behind a parked message waits on when its shard moves to another relay, and is
// sent, in order, when an operator has decided, wherever the shard is.
func TestAParkedMessageBlocksItsKeyWhereverTheShardIs(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		p := newPost(t, db)
		p.broker.refusing(func(_ string, msg *message.Message) error {
			if string(msg.Payload) == "0" && msg.Metadata.Get("key") != "free" {
				return outbox.Permanent(errRefused)
			}
			return nil
		})
		once := func(c *outbox.RelayConfig) { c.MaxAttempts = 1 }
		first := p.member("first", once)
		want, _ := p.spread(16, 2)
		rig.Eventually(p, "the first of each key is parked", func() bool { return len(p.parked()) == 16 })

		second := p.member("second", once)
		p.shared(first, second)
		p.behind(want)
		p.broker.awaitAll(t, p.send("orders", "free", 20))
		assert.Len(t, p.broker.deliveries(), 20, "messages that do not wait")

		for _, letter := range p.parked() {
			by := outbox.Operator{Name: "nobody", Reason: "a test"}
			require.NoError(t, p.out.Discard(t.Context(), letter.ID, by))
		}
		all := p.behind(want)
		p.broker.awaitAll(t, all)
		require.NoError(t, second.stop())
		p.shared(first)
		p.broker.awaitAll(t, p.behind(want))
		for key := range want {
			want[key] = want[key][1:] // the first was discarded
		}
		p.inOrder(want)
		p.onceEach()
	})
}

func (p *post) parked() []outbox.Parked {
	p.Helper()
	all, err := p.out.Parked(p.Context(), 0, 100)
	require.NoError(p, err)
	return all
}

// behind stores one more message on each key, and returns all that are not the first.
func (p *post) behind(want map[string][]string) (all []string) {
	p.Helper()
	for key, ids := range want {
		m := letters(key, 2)[1]
		require.NoError(p, p.publishIn(p.Context(), "orders", []*message.Message{m}))
		want[key] = append(ids, m.UUID)
		all = append(all, want[key][1:]...)
	}
	return all
}
