package outbox_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	pace "github.com/millrace-go/millrace/internal/outage"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

var relayOutageBodies = []testdb.Body{
	{Name: "an outage of the broker", Why: "it spends no attempts, one message at a time asks whether it is over, and then all flows in order", Run: func(t *testing.T, db *testdb.DB) {
		p, b, seen := newPost(t, db), newStrict(t), &events{}
		relay := p.relayTo(b, seen.observe, func(c *outbox.RelayConfig) { c.MaxAttempts = 3 })
		p.allSent(b, p.store("orders", b.letters("k0", 2)...))
		b.refusing(refuseAll)
		var all []string
		for i := range 20 {
			all = append(all, p.store(fmt.Sprintf("topic-%d", i%3), b.letters(fmt.Sprintf("k%d", i%5), 3)...)...)
		}
		rig.Eventually(p, "three probes fail", func() bool { return len(seen.of("outage")) >= 4 })
		for _, r := range p.table() {
			assert.Equal(t, rowPending, r.Status)
			assert.Zero(t, r.Attempts)
		}
		b.probedOneByOne(seen.of("outage"))
		b.refusing(nil)
		p.allSent(b, all)
		outages := seen.of("outage")
		assert.Equal(t, "nothing gets through", outages[0].Reason)
		assert.ErrorIs(t, outages[0].Err, errRefused)
		assert.Equal(t, "the broker is still out", outages[1].Reason)
		last := outages[len(outages)-1]
		assert.Equal(t, "over", last.Reason)
		assert.NoError(t, last.Err)
		assert.Positive(t, last.Duration)
		assert.Empty(t, seen.of("attempt"))
		require.NoError(t, relay.stop())
	}},
	{Name: "an outage in the relay's row", Why: "operators see the last error and since when, but no payload and no password", Run: func(t *testing.T, db *testdb.DB) {
		p, b := newPost(t, db), newStrict(t)
		b.refusing(func(_ string, msg *message.Message) error {
			return fmt.Errorf("dial amqp://shop:p4ssword@mq:5672/: %w: cannot send %q", errRefused, msg.Payload)
		})
		began := time.Now()
		relay := p.relayTo(b)
		row := func() outbox.RelayLease {
			layout, err := p.out.Shards(t.Context())
			require.NoError(t, err)
			if len(layout.Relays) == 0 {
				return outbox.RelayLease{}
			}
			return layout.Relays[0]
		}
		rig.Eventually(p, "the relay runs", func() bool { return row().Alive })
		assert.Empty(t, row().BrokerError)
		assert.Zero(t, row().BrokerOutSince)
		all := p.store("orders", message.NewMessage("u-1", []byte("a card number")))
		rig.Eventually(p, "the row says so", func() bool { return row().BrokerError != "" })
		assert.Equal(t, "dial amqp:[hidden]@mq:5672/: "+errRefused.Error()+`: cannot send "[hidden]"`, row().BrokerError)
		assert.WithinRange(t, row().BrokerOutSince, began.Add(-10*time.Second), time.Now().Add(10*time.Second))
		b.refusing(nil)
		p.allSent(b, all)
		rig.Eventually(p, "the row says that it is over", func() bool { return row().BrokerError == "" && row().BrokerOutSince.IsZero() })
		require.NoError(t, relay.stop())
	}},
	{Name: "an outage that cannot be noted", Why: "the tables are of the release before, and messages go out all the same", Run: func(t *testing.T, db *testdb.DB) {
		p, b, seen := newPost(t, db), newStrict(t), &events{}
		db.DropViews(t)
		db.Do(t, `ALTER TABLE millrace_outbox_relays DROP COLUMN broker_error`)
		b.refusing(refuseAll)
		relay := p.relayTo(b, seen.observe)
		all := p.store("orders", b.letters("k0", 3)...)
		rig.Eventually(p, "the log says so", func() bool { return strings.Contains(strings.Join(p.log.all(), "\n"), "could not note for operators") })
		b.refusing(nil)
		p.allSent(b, all)
		require.NoError(t, relay.stop())
		assert.Equal(t, 1, strings.Count(strings.Join(p.log.all(), "\n"), "could not note for operators"))
	}},
	{Name: "a relay that stops in an outage", Why: "observers hear that it no longer looks: a gauge of theirs would stay for ever", Run: func(t *testing.T, db *testdb.DB) {
		p, b, seen := newPost(t, db), newStrict(t), &events{}
		b.refusing(refuseAll)
		relay := p.relayTo(b, seen.observe)
		p.store("orders", b.letters("k0", 1)...)
		rig.Eventually(p, "a probe fails", func() bool { return len(seen.of("outage")) >= 2 })
		require.NoError(t, relay.stop())
		outages := seen.of("outage")
		last := outages[len(outages)-1]
		assert.NoError(t, last.Err)
		assert.Equal(t, "the relay stops", last.Reason)
		assert.Positive(t, last.Duration)
	}},
	{Name: "an outage with more messages than a relay has in hand", Why: "what is behind them is looked for, in vain, and all flows in order when it is over", Run: func(t *testing.T, db *testdb.DB) {
		p, b, seen := newPost(t, db), newStrict(t), &events{}
		b.refusing(refuseAll)
		var all []string
		for i := range 12 {
			all = append(all, p.store("orders", b.letters(fmt.Sprintf("k%d", i%4), 4)...)...)
		}
		p.relayTo(b, seen.observe, func(c *outbox.RelayConfig) { c.Batch, c.Lanes = 4, 2 })
		rig.Eventually(p, "three probes fail", func() bool { return len(seen.of("outage")) >= 4 })
		b.refusing(nil)
		p.allSent(b, all)
		for _, e := range seen.of("attempt") {
			assert.Zero(t, e.Attempts)
		}
	}},
	{Name: "a publisher that panics", Why: "it is one that fails", Run: func(t *testing.T, db *testdb.DB) {
		p, b, seen := newPost(t, db), newStrict(t), &events{}
		b.way = panicking
		msgs := append(b.letters("k", 3), b.letters("", 5)...)
		b.refusing(refuses(errRefused, msgs[0].UUID))
		p.relayTo(b, seen.observe)
		all := p.store("orders", msgs...)
		b.awaitAll(all[3:])
		for len(seen.about("attempt", all[0])) == 0 { // while others get through: else it is an outage
			b.awaitAll(p.store("orders", b.letters("", 1)...))
		}
		assert.ErrorContains(t, seen.about("attempt", all[0])[0].Err, "the publisher panicked: refused")
		b.refusing(nil)
		b.awaitAll(all)
	}},
}

func refuseAll(string, *message.Message) error { return errRefused }

// probedOneByOne checks the calls since an outage began: one message each, not two at a
// time, and with pauses that grow.
func (b *strict) probedOneByOne(outage []outbox.Event) {
	b.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	probes := b.calls[len(b.calls)-len(outage)+1:]
	const least = 125 * time.Millisecond
	for i, probe := range probes {
		assert.Len(b.T, probe.uuids, 1)
		assert.True(b.T, probe.alone, "two at a time")
		if i > 0 {
			assert.GreaterOrEqual(b.T, probe.began.Sub(probes[i-1].began), min(least<<i, pace.Longest/2), "pause %d", i)
		}
	}
}

var relayTopicBodies = []testdb.Body{
	{Name: "one dead topic", Why: "it is no outage: the rest flows, and its messages come in order when it heals", Run: func(t *testing.T, db *testdb.DB) {
		p, b, seen := newPost(t, db), newStrict(t), &events{}
		b.refusing(dead)
		p.relayTo(b, seen.observe, func(c *outbox.RelayConfig) {
			c.MinBackoff, c.MaxBackoff = 100*time.Millisecond, time.Second
		})
		var alive, behind []string
		for i := range 30 {
			alive = append(alive, p.store("alive", b.letters(fmt.Sprintf("a%d", i%4), 1)...)...)
			behind = append(behind, p.store("dead", b.letters("", 1)...)...)
			// Keys of both topics, and so what would flow has to wait for what does not.
			alive = append(alive, p.store("alive", b.letters(fmt.Sprintf("both%d", i), 1)...)...)
			behind = append(behind, p.store("dead", b.letters(fmt.Sprintf("both%d", i), 1)...)...)
			behind = append(behind, p.store("alive", b.letters(fmt.Sprintf("both%d", i), 1)...)...)
		}
		b.awaitAll(alive)
		tries, began := b.triesOf("dead"), time.Now()
		for range 20 { // time passes for what fails, and not for what flows
			b.awaitAll(p.store("alive", b.letters("", 1)...))
		}
		tries, took := b.triesOf("dead")-tries, time.Since(began)
		assert.Less(t, tries, max(400, int(100*took.Seconds())), "calls of a topic that is dead, in %v", took)
		assert.NotEmpty(t, seen.of("attempt"))
		b.refusing(nil)
		p.allSent(b, behind)
		b.once(alive)
	}},
	{Name: "a dead topic at the head of the table", Why: "more of its messages than a relay has in hand hide none of a topic that works", Run: strictly(func(_ *testing.T, p *post, b *strict) {
		b.refusing(dead)
		var behind []string
		for i := range 8 {
			behind = append(behind, p.store("dead", append(b.letters("", 2), b.letters(fmt.Sprintf("k%d", i%5), 2)...)...)...)
		}
		for i := range 5 {
			behind = append(behind, p.store("alive", b.letters(fmt.Sprintf("k%d", i), 1)...)...)
		}
		alive := p.store("alive", append(b.letters("", 10), b.letters("a", 3)...)...)
		p.relayTo(b, func(c *outbox.RelayConfig) { c.Batch, c.Lanes, c.MaxBackoff = 5, 2, time.Second })
		b.awaitAll(alive)
		b.refusing(nil)
		p.allSent(b, behind)
	})},
}

// dead refuses a topic.
func dead(topic string, _ *message.Message) error {
	if topic == "dead" {
		return errRefused
	}
	return nil
}

// triesOf counts the calls of a topic.
func (b *strict) triesOf(topic string) (n int) {
	b.with(func() {
		for _, c := range b.calls {
			if c.topic == topic {
				n++
			}
		}
	})
	return n
}
