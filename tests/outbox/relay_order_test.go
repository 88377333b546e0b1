package outbox_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	testdb.Conformance(t, bodies)
}

var bodies = []testdb.Body{
	{
		Name: "what is committed is sent", Why: "a message exists exactly if the work that it tells of was committed",
		Run: func(t *testing.T, db *testdb.DB) {
			p := newPost(t, db)
			p.relay()
			sent := p.send("orders", "", 3)
			failing := letters("", 1)
			err := outbox.InTx(t.Context(), db.DB, func(ctx context.Context, _ *sqlx.Tx) error {
				require.NoError(t, p.publishIn(ctx, "orders", failing))
				return errRefused
			})
			require.ErrorIs(t, err, errRefused)
			sent = append(sent, p.send("orders", "", 1)...)
			p.broker.awaitAll(t, sent)
			rig.Eventually(p, "the outbox is empty", func() bool { return p.rows() == 0 })
			assert.NotContains(t, p.broker.deliveries(), failing[0].UUID)
			for id, n := range p.broker.deliveries() {
				assert.Equal(t, 1, n, id)
			}
		},
	},
}

var relayOrderBodies = []testdb.Body{
	{
		Name: "order per key through failures",
		Why:  "first deliveries of a key are in order, whatever fails, whenever, and however the publisher fails",
		Run: func(t *testing.T, db *testdb.DB) {
			throughFailures(t, db, 1)
		},
	},
	{
		Name: "order per key through failures in bursts",
		Why:  "with KeyBurst a call carries a key's messages in order, and none that failed before",
		Run: func(t *testing.T, db *testdb.DB) {
			throughFailures(t, db, 4)
		},
	},
	// has keys blocked and released again and again while their messages are
	// stored: by a head that gets through, by an operator who has it retried, and by one who
	// discards it.
	{Name: "messages stored while their key is released", Why: "what waits goes out in order, however it is released", Run: strictly(func(t *testing.T, p *post, b *strict) {
		var mu sync.Mutex
		poison := make(map[string]error)
		set := func(id string, err error) {
			mu.Lock()
			defer mu.Unlock()
			poison[id] = err
		}
		b.refusing(func(_ string, m *message.Message) error {
			mu.Lock()
			defer mu.Unlock()
			return poison[m.UUID]
		})
		p.relayTo(b, func(c *outbox.RelayConfig) { c.MaxAttempts, c.Batch = 2, 10 })
		var all []string
		var writers sync.WaitGroup
		for k := range 3 {
			key := fmt.Sprintf("k%d", k)
			writers.Go(func() {
				for round := range 3 {
					head := b.letters(key, 1)
					id := head[0].UUID
					set(id, outbox.Permanent(errRefused))
					p.store("orders", head...)
					stop := make(chan struct{})
					stored := make(chan []string)
					go func() { stored <- p.storeUntil(b, key, stop) }()
					parked := p.awaitParked(id)
					by := outbox.Operator{Name: "ann", Reason: "test"}
					if (k+round)%2 == 0 {
						set(id, nil)
						assert.NoError(t, p.out.Retry(t.Context(), parked.ID, by))
					} else {
						b.excuse(head...)
						assert.NoError(t, p.out.Discard(t.Context(), parked.ID, by))
						id = ""
					}
					close(stop)
					ids := <-stored
					b.awaitAll(ids)
					mu.Lock()
					if all = append(all, ids...); id != "" {
						all = append(all, id)
					}
					mu.Unlock()
				}
			})
		}
		writers.Wait()
		p.sentOnce(b, all)
	})},
}

// throughFailures stores messages of few keys, to few topics, in many transactions, to a
// broker that fails at random for a while.
func throughFailures(t *testing.T, db *testdb.DB, burst int) {
	t.Helper()
	p, b := newPost(t, db), newStrict(t)
	b.burst = burst
	left := 60
	b.refusing(func(string, *message.Message) error {
		b.way = way(rand.IntN(int(ways)))
		if burst > 1 && (b.way == harsh || b.way == partial) {
			b.way = whole // KeyBurst is not for publishers that go on after a failure
		}
		if left == 0 || rand.IntN(3) > 0 {
			return nil
		}
		left--
		return [...]error{errRefused, errRefused, outbox.Permanent(errRefused)}[rand.IntN(3)]
	})
	p.relayTo(b, func(c *outbox.RelayConfig) {
		c.Batch, c.Lanes, c.KeyBurst = 8, 3, burst
		c.MinBackoff, c.MaxBackoff = time.Millisecond, 20*time.Millisecond
	})
	var all []string
	for i := range 40 {
		key := fmt.Sprintf("k%d", rand.IntN(6))
		all = append(all, p.store(fmt.Sprintf("topic-%d", i%3), b.letters(key, 1+rand.IntN(3))...)...)
	}
	p.allSent(b, all)
}

// storeUntil stores messages one after the other, with a key or without, three at least.
func (p *post) storeUntil(b *strict, key string, stop <-chan struct{}) (ids []string) {
	for {
		msgs := b.letters(key, 1)
		err := outbox.InTx(p.Context(), p.db.DB, func(ctx context.Context, _ *sqlx.Tx) error {
			return p.publishIn(ctx, "orders", msgs)
		})
		if !assert.NoError(p.T, err) {
			return ids
		}
		ids = append(ids, uuids(msgs)...)
		select {
		case <-stop:
			if len(ids) >= 3 {
				return ids
			}
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// awaitParked waits for a message to be parked.
func (p *post) awaitParked(uuid string) (found outbox.Parked) {
	p.Helper()
	rig.Eventually(p, "a message is parked", func() bool {
		all, err := p.out.Parked(p.Context(), 0, 100)
		assert.NoError(p.T, err)
		for _, one := range all {
			if one.Message.UUID == uuid {
				found = one
				return true
			}
		}
		return false
	})
	return found
}
