package outbox

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/dialect"
)

// newLeasedPump returns a pump that may write, with both of two shards.
func newLeasedPump(t *testing.T, config RelayConfig) *pump {
	t.Helper()
	p := newPumpOf(t, newTestRelay(t, oneLane(config)))
	_, err := p.exec(t.Context(), p.sql.InsertRelay, p.lease.token, "a relay", time.Hour.Microseconds())
	require.NoError(t, err)
	p.shards = assignment{generation: 1, count: 2, mask: 3}
	p.wanted = p.shards
	return p
}

// lose takes the shard of a key away, or the other one.
func (p *pump) lose(t *testing.T, key int64, other bool) {
	t.Helper()
	shard := p.shards.shard(key)
	if other {
		shard ^= 1
	}
	p.assign(t.Context(), assignment{generation: 1, count: 2, mask: 3 &^ (1 << shard)})
}

// quiet has no look called for but by what is held back.
func (p *pump) quiet() {
	r := &p.reader
	r.hungry, r.dueAt = false, time.Time{}
	r.sweepAt, r.lookAt, r.walk.at = time.Now().Add(time.Hour), time.Now().Add(time.Hour), time.Now().Add(time.Hour)
}

// looks is how many looks follow one another at once.
func (p *pump) looks(t *testing.T) (n int) {
	t.Helper()
	for ; n < 100; n++ {
		p.read(t.Context())
		if !p.reader.busy {
			break
		}
		p.took(p.await(t))
	}
	return n
}

// deliver has everything in hand confirmed, and returns what it was.
func (p *pump) deliver(t *testing.T) []int64 {
	t.Helper()
	r := p.away(0)
	for _, l := range r.letters {
		r.fate(l.id, nil)
	}
	p.settle(t.Context(), r)
	return ids(r.letters)
}

func TestAKeyOfAShardThatWentIsNotLookedFor(t *testing.T) {
	p := newLeasedPump(t, RelayConfig{})
	p.put(t, "hot", dialect.OutboxHeld, 1, 2, 3)
	key := hash("hot")
	p.blocked[key] = block{}
	p.ledger.release(key)
	p.lose(t, key, false)
	p.flushAll(t)
	p.quiet()
	assert.Zero(t, p.looks(t))
	assert.Empty(t, p.drains)
}

// The look began before the table knew of the message, and it came back after.
func TestWhatIsHeldBackDuringALookIsNotForgotten(t *testing.T) {
	p := newLeasedPump(t, RelayConfig{})
	p.open(hash("hot"), 0)
	p.put(t, "hot", dialect.OutboxPending, 6)
	p.reader.last = due
	p.round(t, pending)
	require.Len(t, p.ledger.hold, 1)
	p.quiet()
	p.read(t.Context())
	look := p.await(t)
	require.Equal(t, held, look.kind)
	p.flushAll(t)
	p.took(look)
	assert.Positive(t, p.looks(t))
	assert.Equal(t, []int64{6}, p.deliver(t))
}

func TestWhatIsConfirmedDuringALookIsNotSentAgain(t *testing.T) {
	p := newLeasedPump(t, RelayConfig{})
	key := hash("hot")
	p.put(t, "hot", dialect.OutboxHeld, 1, 2, 3, 4)
	p.open(key, 0)
	p.reader.last = pending
	p.round(t, held)
	r := p.away(0)
	p.lose(t, key, true)
	p.round(t, due)
	p.reader.dueAt = time.Time{}
	p.round(t, pending) // it walks: nothing blocks the key
	p.flushAll(t)
	p.quiet()
	p.read(t.Context())
	look := p.await(t)
	require.Equal(t, held, look.kind)
	for _, l := range r.letters {
		r.fate(l.id, nil)
	}
	p.settle(t.Context(), r)
	p.flushAll(t)
	p.took(look)
	assert.Empty(t, ids(p.lanes[0].queue))
	p.looks(t)
	assert.NotContains(t, p.drains, key)
}

func TestAKeyWhoseFirstIsOnItsWayIsNotLookedForAllTheTime(t *testing.T) {
	p := newLeasedPump(t, RelayConfig{})
	key := hash("hot")
	p.put(t, "hot", dialect.OutboxHeld, 1, 2, 3, 4)
	p.open(key, 0)
	p.reader.last = pending
	p.round(t, held)
	p.away(0) // the broker does not answer
	p.lose(t, key, true)
	p.round(t, due)
	p.reader.dueAt = time.Time{}
	p.round(t, pending)
	p.flushAll(t)
	p.quiet()
	assert.LessOrEqual(t, p.looks(t), 2)
}

// Some of a key were in hand, and what is behind them about to be held back, when the relay had to
// let go of them.
func TestWhatIsLetGoBeforeWhatIsHeldBackIsHeldBackToo(t *testing.T) {
	for how, stop := range map[string]func(*pump){
		"it closes":      func(p *pump) { p.close() },
		"the shard goes": func(p *pump) { p.lose(t, hash("hot"), false) },
	} {
		t.Run(how, func(t *testing.T) {
			p := newLeasedPump(t, RelayConfig{Batch: 4})
			p.put(t, "x", dialect.OutboxPending, 100)
			p.ledger.sent = append(p.ledger.sent, 100)
			p.flush(t.Context()) // the flusher is busy
			p.put(t, "hot", dialect.OutboxPending, 1, 2, 3, 4)
			p.round(t, pending)
			require.Equal(t, []int64{1, 2}, ids(p.lanes[0].queue))
			stop(p)
			p.flushed(<-p.flusher.done)
			p.flushAll(t)
			assert.Equal(t, []int{2, 2, 2, 2}, p.hot(t))
			assert.Empty(t, p.window)
		})
	}
}

// However a table came about in which messages wait before others that are held back, or between
// them: they go out as they were stored, though a look finds only some of them.
func TestWhatIsHeldBackDoesNotOvertakeWhatWasNotRead(t *testing.T) {
	for name, statuses := range map[string][]int{
		"pending before": {0, 0, 0, 2, 2}, "pending between": {2, 0, 2, 0, 2}, "pending behind": {2, 2, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := newLeasedPump(t, RelayConfig{Batch: 4})
			p.reader.upTo = 0
			p.reader.walk.restart()
			for i, status := range statuses {
				p.put(t, "hot", status, int64(i+1)*10)
				p.put(t, string(rune('a'+i)), dialect.OutboxPending, int64(i+1)*10+1, int64(i+1)*10+2, int64(i+1)*10+3)
			}
			var order []int64
			for rounds := 0; len(p.hot(t)) > 0; rounds++ {
				require.Less(t, rounds, 100)
				p.reader.hungry = true
				if p.read(t.Context()); p.reader.busy {
					p.took(p.await(t))
				}
				for _, id := range p.deliver(t) {
					if id%10 == 0 {
						order = append(order, id)
					}
				}
				p.flushAll(t)
			}
			assert.Equal(t, []int64{10, 20, 30, 40, 50}, order)
		})
	}
}

// A key whose first message that is held lies behind what was read is not looked for until that was.
func TestAKeyThatIsNotYetReachedWaitsWithoutALook(t *testing.T) {
	p := newLeasedPump(t, RelayConfig{})
	p.put(t, "hot", dialect.OutboxHeld, 10)
	p.reader.upTo = 5
	p.open(hash("hot"), 0)
	p.quiet()
	assert.Equal(t, 1, p.looks(t))
	assert.Empty(t, p.lanes[0].queue)
	p.reader.passed(p, 0, math.MaxInt64)
	assert.Positive(t, p.looks(t))
	assert.Equal(t, []int64{10}, p.deliver(t))
}

// What of a hot key is about to be held back is not on its way: it keeps nothing from being read.
func TestWhatIsAboutToBeHeldBackIsNotInTheWay(t *testing.T) {
	p := newLeasedPump(t, RelayConfig{})
	key := hash("hot")
	p.put(t, "hot", dialect.OutboxHeld, 1, 2, 3)
	p.open(key, 0)
	for id := range int64(100) {
		p.inHand(mail(1000+id, "hot", "t"))
	}
	p.siftAll()
	require.Len(t, p.ledger.hold, 100)
	p.quiet()
	assert.Positive(t, p.looks(t))
	assert.Equal(t, []int64{1, 2, 3}, p.deliver(t))
}

func TestKeysOfWhichLittleIsHeldBackShareALook(t *testing.T) {
	p := newLeasedPump(t, RelayConfig{Batch: 100})
	for i := range 25 {
		p.open(int64(i), 0)
	}
	assert.Len(t, p.draughts(), 25)
	p.drains[7].queued = false
	p.took(&reading{kind: held, draughts: []draught{{drain: p.drains[7], key: 7, limit: 4, letters: []*letter{
		mail(1, "k", "t"), mail(2, "k", "t"), mail(3, "k", "t"), mail(4, "k", "t"),
	}}}})
	require.NotEmpty(t, p.thirsty)
	for _, one := range p.draughts() {
		assert.Equal(t, 8, one.limit, "more of one that has more")
	}
}
