package outbox_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

var relayFailureBodies = []testdb.Body{
	{Name: "a poison message among others", Why: "it is parked after its attempts, and everything else flows, once", Run: func(t *testing.T, db *testdb.DB) {
		p, b, seen := newPost(t, db), newStrict(t), &events{}
		b.way = partial
		msgs := append(b.letters("", 11), b.letters("k", 4)...)
		poison := msgs[5].UUID
		b.refusing(refuses(errRefused, poison))
		p.relayTo(b, seen.observe, func(c *outbox.RelayConfig) { c.MaxAttempts = 3 })
		all := p.store("orders", msgs...)
		for len(seen.about("parked", poison)) == 0 {
			ids := p.store("orders", b.letters("", 1)...)
			b.awaitAll(ids)
			all = append(all, ids...)
		}
		all = slices.DeleteFunc(all, func(id string) bool { return id == poison })
		b.awaitAll(all)
		b.once(all)
		assert.Zero(t, b.counts()[poison])

		var spent []int
		for _, e := range seen.about("attempt", poison) {
			assert.ErrorIs(t, e.Err, errRefused)
			assert.Equal(t, "orders", e.Topic)
			spent = append(spent, e.Attempts)
		}
		assert.Equal(t, []int{1, 2}, slices.DeleteFunc(spent, func(n int) bool { return n == 0 }), "each counts once")
		parked := seen.about("parked", poison)
		require.Len(t, parked, 1)
		assert.Equal(t, 3, parked[0].Attempts)
		row := p.awaitStatus(poison, rowParked)
		assert.Equal(t, 3, row.Attempts)
		assert.Equal(t, "refused", *row.LastError)
		free := 1 + len(seen.of("outage")) // the first, and those in which it was alone
		assert.LessOrEqual(t, b.given(poison), 3+free)
	}},
	{Name: "a poison message alone", Why: "where nothing else is there, a failure is an outage, which ends with what comes next", Run: func(t *testing.T, db *testdb.DB) {
		p, b, seen := newPost(t, db), newStrict(t), &events{}
		poison := b.letters("p", 1)
		b.refusing(refuses(errRefused, poison[0].UUID))
		p.relayTo(b, seen.observe, func(c *outbox.RelayConfig) { c.MaxAttempts = 2 })
		p.store("orders", poison...)
		rig.Eventually(p, "an outage begins", func() bool { return len(seen.of("outage")) >= 2 })
		p.store("orders", b.letters("p", 1)...) // has to wait
		var others []string
		for i := range 8 { // in every lane
			others = append(others, p.store("orders", b.letters(fmt.Sprintf("k%d", i), 1)...)...)
		}
		b.awaitAll(others)
		for len(seen.of("parked")) == 0 { // each time something gets through, it is an attempt
			b.awaitAll(p.store("orders", b.letters("", 1)...))
		}
		assert.Equal(t, 2, p.awaitStatus(poison[0].UUID, rowParked).Attempts)
	}},
	{Name: "poison messages of a topic that works", Why: "messages that fail do not keep others of their topic waiting", Run: strictly(func(t *testing.T, p *post, b *strict) {
		poison := b.letters("", 5)
		b.refusing(refuses(errRefused, uuids(poison)...))
		p.relayTo(b, func(c *outbox.RelayConfig) {
			c.Lanes, c.MinBackoff, c.MaxBackoff = 1, 500*time.Millisecond, time.Minute
		})
		ids := p.store("orders", slices.Concat(poison, b.letters("", 5))...)
		b.awaitAll(p.store("others", b.letters("", 1)...))
		for i := range 20 {
			ids = append(ids, p.store("orders", b.letters(fmt.Sprintf("k%d", i%3), 1)...)...)
			b.awaitAll(p.store("others", b.letters("", 1)...))
		}
		b.awaitAll(ids[5:])
		for _, m := range poison {
			require.NotNil(t, p.row(m.UUID))
		}
	})},
	{Name: "a permanent error", Why: "it is about the message: it counts even when nothing else is confirmed", Run: func(t *testing.T, db *testdb.DB) {
		p, b, seen := newPost(t, db), newStrict(t), &events{}
		b.refusing(func(string, *message.Message) error { return outbox.Permanent(errRefused) })
		p.relayTo(b, seen.observe, func(c *outbox.RelayConfig) { c.MaxAttempts = 2 })
		first := p.store("orders", b.letters("", 1)...)[0]
		assert.Equal(t, 2, p.awaitStatus(first, rowParked).Attempts)
		assert.Equal(t, 2, b.given(first))
		p.store("orders", b.letters("k", 4)...)
		rig.Eventually(p, "the head is parked", func() bool { return len(seen.of("parked")) == 2 })
		assert.Empty(t, seen.of("outage"), "the broker answers")

		// A broker that is out takes nothing for good either.
		b.refusing(func(_ string, m *message.Message) error {
			if m.Metadata.Get("key") == "unroutable" {
				return outbox.Permanent(errRefused)
			}
			return errRefused
		})
		waiting := p.store("orders", b.letters("", 1)...)
		rig.Eventually(p, "an outage begins", func() bool { return len(seen.of("outage")) > 0 })
		unroutable := p.store("orders", b.letters("unroutable", 1)...)[0]
		assert.Equal(t, 2, p.awaitStatus(unroutable, rowParked).Attempts)
		b.refusing(nil)
		b.awaitAll(waiting)
	}},
	{Name: "a batch that fails in the middle", Why: "after a failed call it goes on one by one, per key", Run: strictly(func(t *testing.T, p *post, b *strict) {
		msgs := append(append(b.letters("a", 3), b.letters("b", 3)...), b.letters("", 4)...)
		poison := msgs[3].UUID // the first of b
		b.refusing(refuses(errRefused, poison))
		ids := p.store("orders", msgs...)
		relay := p.relayTo(b, func(c *outbox.RelayConfig) {
			c.Lanes, c.MinBackoff, c.MaxBackoff = 1, time.Minute, time.Minute
		})
		b.awaitAll(append(append([]string{}, ids[:3]...), ids[6:]...))
		p.awaitStatus(poison, rowRetry)
		for _, held := range ids[4:6] {
			p.awaitStatus(held, rowHeld)
			assert.Zero(t, b.given(held), "it waits for the first of its key")
		}
		require.NoError(t, relay.stop())
		b.mu.Lock()
		defer b.mu.Unlock()
		require.Greater(t, len(b.calls), 1)
		assert.Equal(t, []string{ids[0], ids[3], ids[6], ids[7], ids[8], ids[9]}, b.calls[0].uuids, "the heads in one call")
		for i, id := range b.calls[0].uuids {
			assert.Equal(t, []string{id}, b.calls[i+1].uuids, "then one by one")
		}
	})},
	{Name: "a publisher that says what failed", Why: "only what failed is tried again, so there are no duplicates", Run: strictly(func(t *testing.T, p *post, b *strict) {
		b.way = partial
		var mu sync.Mutex
		tries := make(map[string]int)
		msgs := b.letters("", 40)
		for i := range 8 {
			msgs = append(msgs, b.letters(fmt.Sprintf("k%d", i), 3)...)
		}
		refused := make(map[string]bool)
		for i := range msgs {
			if i%3 == 0 {
				refused[msgs[i].UUID] = true
			}
		}
		b.refusing(func(_ string, m *message.Message) error {
			mu.Lock()
			defer mu.Unlock()
			if tries[m.UUID]++; refused[m.UUID] && tries[m.UUID] < 3 {
				return errRefused
			}
			return nil
		})
		p.relayTo(b)
		all := p.store("orders", msgs...)
		p.sentOnce(b, all)
		mu.Lock()
		defer mu.Unlock()
		for _, id := range all {
			assert.Equal(t, map[bool]int{true: 3, false: 1}[refused[id]], tries[id], "times that a message was tried")
		}
	})},
	{Name: "a publisher that changes messages", Why: "each attempt begins with the message as it was stored", Run: func(t *testing.T, db *testdb.DB) {
		p, b := newPost(t, db), newMemoryBroker()
		calls := 0
		b.refusing(func(string, *message.Message) error {
			if calls++; calls < 5 {
				return errRefused
			}
			return nil
		})
		changing := message.MessageTransformPublisherDecorator(func(m *message.Message) {
			m.UUID += "!"
			m.Metadata.Set("encoding", m.Metadata.Get("encoding")+"rot1")
			for i := range m.Payload {
				m.Payload[i]++
			}
		})
		to, err := changing(b)
		require.NoError(t, err)
		ids := p.send("orders", "k", 2)
		ids = append(ids, p.send("orders", "", 3)...)
		p.relayTo(to)
		b.until(t, "all are sent", func() bool { return len(b.sent) >= len(ids) })
		rig.Eventually(p, "the outbox is empty", func() bool { return p.rows() == 0 })
		for _, m := range b.sent {
			id := strings.TrimSuffix(m.UUID, "!")
			require.Contains(t, ids, id)
			n := slices.Index(ids, id)
			assert.Equal(t, "rot1", m.Metadata.Get("encoding"))
			assert.Equal(t, fmt.Sprint([]int{1, 2, 1, 2, 3}[n]), string(m.Payload))
		}
	}},
	{Name: "an id that is given twice", Why: "a replica that lagged has become the primary: what comes of the lost message must not befall another one", Run: func(t *testing.T, db *testdb.DB) {
		for _, change := range []func(*outbox.RelayConfig){
			func(*outbox.RelayConfig) {},
			func(c *outbox.RelayConfig) { c.Retention = time.Hour },
			func(c *outbox.RelayConfig) { c.MaxAttempts = 1 }, // the lost message is refused
		} {
			p := newPost(t, db)
			lost := p.send("orders", "", 1)
			b := &hesitant{memoryBroker: newMemoryBroker(), reached: make(chan struct{}), answer: make(chan error)}
			relay := p.relayTo(b, change)
			<-b.reached
			id := p.row(lost[0]).ID
			p.failOver(id)
			other := p.send("orders", "", 1)
			assert.Equal(t, db.Dialect != "sqlite", id == p.row(other[0]).ID)
			var config outbox.RelayConfig
			if change(&config); config.MaxAttempts == 1 {
				b.answer <- errRefused
			} else {
				b.answer <- nil
			}
			b.awaitAll(t, other)
			rig.Eventually(p, "the result is recorded", func() bool {
				return p.db.Count(t, `SELECT COUNT(*) FROM millrace_outbox WHERE status <> ?`, rowSent) == 0
			})
			require.NoError(t, relay.stop())
			p.db.Do(t, `DELETE FROM millrace_outbox`)
		}
	}},
	{Name: "an id that is given twice in a key", Why: "a message waits for the new one, although the id of that is on its way", Run: strictly(func(t *testing.T, p *post, b *strict) {
		reached, answer := make(chan struct{}), make(chan struct{})
		var calls atomic.Int32
		b.with(func() {
			b.before = func() {
				if calls.Add(1) == 1 {
					close(reached)
					<-answer
				}
			}
		})
		lost := p.store("orders", b.letters("k", 1)...)
		p.relayTo(b)
		<-reached
		p.failOver(p.row(lost[0]).ID)
		ids := p.store("orders", append(b.letters("k", 3), b.letters("", 16)...)...)
		b.until(t, "the relay has read them", func() bool { return len(b.sent) > 0 })
		close(answer)
		p.sentOnce(b, ids)
	})},
}

// failOver has the outbox be that of a replica, which has nothing from this id on.
func (p *post) failOver(id int64) {
	p.Helper()
	p.db.Do(p, `DELETE FROM millrace_outbox WHERE id >= ?`, id)
	switch p.db.Dialect { // SQLite gives no id twice
	case "postgres":
		p.db.Count(p, `SELECT setval(pg_get_serial_sequence('millrace_outbox', 'id'), ?, false)`, id)
	case "mysql":
		p.db.Do(p, fmt.Sprintf(`ALTER TABLE millrace_outbox AUTO_INCREMENT = %d`, id))
	}
}

// refuses returns a refuse function for messages by UUID.
func refuses(err error, ids ...string) func(string, *message.Message) error {
	return func(_ string, m *message.Message) error {
		if slices.Contains(ids, m.UUID) {
			return err
		}
		return nil
	}
}

// hesitant is a broker that waits for an answer to the first call.
type hesitant struct {
	*memoryBroker

	once    sync.Once
	reached chan struct{}
	answer  chan error
}

func (h *hesitant) Publish(topic string, msgs ...*message.Message) (err error) {
	h.once.Do(func() {
		close(h.reached)
		err = <-h.answer
	})
	return errors.Join(err, h.memoryBroker.Publish(topic, msgs...))
}
