package outbox

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/dialect"
)

// The shard of the only key to look for has gone.
func TestALookForNoKey(t *testing.T) {
	p := newLeasedPump(t, RelayConfig{})
	listed := *p.sql
	listed.KeysAreListed = true
	p.sql = &listed
	p.check(hash("hot"))
	p.lose(t, hash("hot"), false)
	p.reader.last = pending
	p.read(t.Context())
	r := p.await(t)
	require.Equal(t, keys, r.kind)
	assert.NoError(t, r.err)
}

// While its key was looked for, behind what was in hand, all of that was held back, and then its key was opened.
func TestALookForAKeyThatBeganBehindWhatWasHeldBack(t *testing.T) {
	p := newLeasedPump(t, RelayConfig{Batch: 16})
	p.put(t, "hot", dialect.OutboxPending, 8, 10, 20)
	p.reader.last = due
	p.round(t, pending)
	p.reader.floor.marks = []mark{{time.Now().Add(-2 * horizon), 25}}
	p.put(t, "hot", dialect.OutboxPending, 30, 40)
	p.check(hash("hot"))
	p.rest()
	p.reader.last = pending
	p.read(t.Context())
	look := p.await(t)
	require.Equal(t, keys, look.kind)

	far := time.Now().Add(time.Hour)
	p.outage.on, p.outage.kept, p.outage.letters, p.outage.topics = true, map[string]int64{}, map[int64]time.Time{}, map[string]time.Time{}
	p.trouble["t"] = trouble{until: far, suspects: far, passes: 100, err: errRefused}
	p.siftAll()
	require.Equal(t, []int64{8}, ids(p.lanes[0].queue))
	assert.Equal(t, []int64{8}, p.deliver(t))
	p.flushAll(t)
	p.took(look)
	assert.Equal(t, []int64{10, 20, 30, 40}, p.drain(t))
}

// A look for a key may find more than was reckoned with: what is in hand of it may lie before.
func TestLooksForKeysTakeNoMoreThanThereIsRoom(t *testing.T) {
	p := newLeasedPump(t, RelayConfig{Batch: 100})
	id := int64(0)
	put := func(each int, inHand bool) {
		for k := range 30 {
			for range each {
				id++
				p.put(t, fmt.Sprint(k), dialect.OutboxPending, id)
				if l := mail(id, fmt.Sprint(k), "t"); inHand {
					p.take(l, time.Now())
				}
			}
		}
	}
	put(4, true)
	p.reader.floor.marks = []mark{{time.Now().Add(-2 * horizon), id}}
	put(1, true)
	put(20, false)
	for k := range 30 {
		p.check(hash(fmt.Sprint(k)))
		p.turn(hash(fmt.Sprint(k))).since = time.Now()
	}
	p.rest()
	require.Len(t, p.window, 150)
	p.reader.last = pending
	p.read(t.Context())
	p.took(p.await(t))
	assert.Len(t, p.window, 200)
}
