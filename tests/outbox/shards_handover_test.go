package outbox_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

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
	rig.Eventually(p, "the first gives up half", func() bool { return first.seen.last() == shards/2 })
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
		assert.True(t, first.seen.inOutage())
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
