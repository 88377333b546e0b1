package outbox

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/dialect"
)

// newLeasedPump returns a pump that may write, with both of two shards.
func newLeasedPump(t *testing.T, config RelayConfig) *pump {
	t.Helper()
	p := newPumpOf(t, newTestRelay(t, oneLane(config)))
	p.joins(t)
	p.shards = assignment{generation: 1, count: 2, mask: 3}
	p.wanted = p.shards
	return p
}

func (p *pump) joins(t *testing.T) {
	t.Helper()
	_, err := p.exec(t.Context(), p.sql.InsertRelay, p.lease.token, "a relay", time.Hour.Microseconds())
	require.NoError(t, err)
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

// put stores messages with these ids, and statuses.
func (p *pump) put(t *testing.T, key string, status int, ids ...int64) {
	t.Helper()
	for _, id := range ids {
		var blocked any
		if status != dialect.OutboxPending {
			blocked = hash(key)
		}
		_, err := p.db.ExecContext(t.Context(), `
			INSERT INTO millrace_outbox (id, key_hash, blocked_key, status, created_at, topic, uuid, order_key)
			VALUES (?, ?, ?, ?, 1, 't', ?, ?)`, id, hash(key), blocked, status, fmt.Sprint(id), key)
		require.NoError(t, err)
	}
}

// hot are the statuses of the messages of the key "hot", in the order of their storing.
func (p *pump) hot(t *testing.T) (statuses []int) {
	t.Helper()
	require.NoError(t, p.db.SelectContext(t.Context(), &statuses,
		`SELECT status FROM millrace_outbox WHERE key_hash = ? ORDER BY id`, hash("hot")))
	return statuses
}

// round does one look, of the given kind, and takes what it found.
func (p *pump) round(t *testing.T, want kind) {
	t.Helper()
	p.reader.hungry = true
	p.read(t.Context())
	r := p.await(t)
	require.Equal(t, want, r.kind)
	p.took(r)
}

// rest has no look called for but for keys.
func (p *pump) rest() {
	r := &p.reader
	r.hungry, r.dueAt = false, time.Time{}
	r.sweepAt, r.lookAt, r.walk = time.Now().Add(time.Hour), time.Now().Add(time.Hour), walk{at: time.Now().Add(time.Hour)}
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

// deliver has everything before the lane confirmed, and returns what it was.
func (p *pump) deliver(t *testing.T) []int64 {
	t.Helper()
	r := p.away(0)
	for _, l := range r.letters {
		r.fate(l.id, nil)
	}
	p.settle(t.Context(), r)
	return ids(r.letters)
}

// drain goes on until nothing of the hot key is left, and returns the order in which it was sent.
func (p *pump) drain(t *testing.T) (order []int64) {
	t.Helper()
	hot := make(map[int64]bool)
	var all []int64
	require.NoError(t, p.db.SelectContext(t.Context(), &all, `SELECT id FROM millrace_outbox WHERE key_hash = ?`, hash("hot")))
	for _, id := range all {
		hot[id] = true
	}
	for rounds := 0; len(p.hot(t)) > 0; rounds++ {
		require.Less(t, rounds, 200, "%v", p.hot(t))
		p.reader.hungry = true
		if p.read(t.Context()); p.reader.busy {
			p.took(p.await(t))
		}
		for _, id := range p.deliver(t) {
			if hot[id] {
				order = append(order, id)
			}
		}
		if p.flush(t.Context()); p.flusher.busy {
			p.flushed(<-p.flusher.done)
		}
	}
	return order
}

// Of a key with more messages than a lane takes some are in hand, and the others held back, where they
// are not in the way.
func TestOfAKeyWithMuchSomeIsInHand(t *testing.T) {
	p := newLeasedPump(t, RelayConfig{Batch: 4})
	require.Equal(t, 2, p.config.keyCap())
	p.put(t, "hot", dialect.OutboxPending, 1, 2, 3, 4)
	p.put(t, "other", dialect.OutboxPending, 5)
	p.reader.last, p.reader.tail = due, tail{}
	p.round(t, pending)
	assert.Equal(t, []int64{1, 2}, ids(p.lanes[0].queue))
	r := p.away(0)
	p.flushAll(t)
	assert.Equal(t, []int{0, 0, 2, 2}, p.hot(t))
	p.reader.last, p.reader.tail = due, tail{}
	p.round(t, pending)
	assert.Equal(t, []int64{5}, ids(p.lanes[0].queue), "others are read")

	// What was stored since is behind what is held back.
	p.put(t, "hot", dialect.OutboxPending, 6)
	p.reader.last, p.reader.tail = due, tail{}
	p.round(t, pending)
	assert.Equal(t, []int64{6}, ids(p.ledger.hold))
	r.fate(1, nil)
	r.fate(2, Permanent(errRefused))
	p.settle(t.Context(), r)
	p.flushAll(t)
	assert.Equal(t, []int{1, 2, 2, 2}, p.hot(t))

	// The second has failed: it is what the others wait for.
	p.deliver(t)
	p.flushAll(t)
	p.rest()
	assert.LessOrEqual(t, p.looks(t), 2)
	p.db.MustExec(`UPDATE millrace_outbox SET due_at = 1 WHERE status = 1`)
	p.reader.dueAt = time.Now()
	assert.Equal(t, []int64{2, 3, 4, 6}, p.drain(t))
	assert.Empty(t, p.blocked)
	assert.Positive(t, p.looks(t))
	assert.Empty(t, p.turns)
}

// However a table came about in which messages wait before others that are held back, or between
// them: they go out as they were stored, though a look finds only some of them.
func TestOrderHangsOnIDsAlone(t *testing.T) {
	for name, statuses := range map[string][]int{
		"pending before": {0, 0, 0, 2, 2}, "pending between": {2, 0, 2, 0, 2}, "pending behind": {2, 2, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			for _, from := range []int64{0, 15, 25, 45} { // whatever the first look reads
				p := newLeasedPump(t, RelayConfig{Batch: 4})
				for i, status := range statuses {
					p.put(t, "hot", status, int64(i+1)*10)
					p.put(t, string(rune('a'+i)), dialect.OutboxPending, int64(i+1)*10+1, int64(i+1)*10+2, int64(i+1)*10+3)
				}
				soon := time.Now().Add(30 * time.Millisecond)
				p.reader.tail, p.reader.sweepAt = tail{on: from > 0, from: from, at: from, rest: soon}, soon
				assert.Equal(t, []int64{10, 20, 30, 40, 50}, p.drain(t))
			}
		})
	}
}

// A message whose transaction was open for long is stored before others that are in hand.
func TestWhatIsStoredLateIsNotForgotten(t *testing.T) {
	p := newLeasedPump(t, RelayConfig{Batch: 4})
	p.put(t, "hot", dialect.OutboxPending, 10, 20, 30, 40, 50)
	p.reader.last = due
	p.round(t, pending)
	p.flushAll(t)
	p.put(t, "hot", dialect.OutboxPending, 15)
	p.reader.sweepAt = time.Time{}
	p.reader.last, p.reader.tail = due, tail{}
	p.round(t, pending)
	require.Equal(t, []int64{15, 50}, ids(p.ledger.hold))
	assert.Equal(t, []int64{10, 20, 15, 30, 40, 50}, p.drain(t))
}

// It was held back, and before its key is looked for the next one is stored, of which all that is before it
// is in hand.
func TestWhatWasHeldBackIsNotForgottenForWhatIsStoredNext(t *testing.T) {
	p := newLeasedPump(t, RelayConfig{Batch: 4})
	p.put(t, "hot", dialect.OutboxPending, 10, 20)
	p.reader.last = due
	p.round(t, pending)
	p.put(t, "hot", dialect.OutboxPending, 5) // its transaction was open for long
	p.reader.sweepAt = time.Time{}
	p.reader.last, p.reader.tail = due, tail{}
	p.round(t, pending)
	require.Equal(t, []int64{5}, ids(p.ledger.hold))
	r := p.away(0)
	r.fate(10, nil)
	p.settle(t.Context(), r)
	p.flushAll(t)
	p.put(t, "hot", dialect.OutboxPending, 30)
	p.reader.last, p.reader.tail = due, tail{}
	p.round(t, pending)
	p.rest()
	assert.Positive(t, p.looks(t))
	assert.Equal(t, []int64{20, 5, 30}, p.drain(t))
}

// A transaction was open while another one of its key was: what it stored is before and behind what is in hand,
// and goes out in its order whatever looks find it.
func TestWhatOneTransactionStoredGoesOutInItsOrder(t *testing.T) {
	for name, next := range map[string]func(*pump){
		"a look for its key": func(p *pump) {
			p.check(hash("hot"))
			p.rest()
		},
		"a look at the tail": func(p *pump) {
			soon := time.Now().Add(time.Minute)
			p.reader.tail, p.reader.sweepAt = tail{on: true, from: 20, at: 20, rest: soon}, soon
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newLeasedPump(t, RelayConfig{Batch: 16})
			p.put(t, "hot", dialect.OutboxPending, 20)
			p.reader.last = due
			p.round(t, pending)
			p.put(t, "hot", dialect.OutboxPending, 10, 15, 30, 40)
			next(p)
			p.reader.last = keys
			assert.Positive(t, p.looks(t))
			assert.Equal(t, []int64{20, 10, 15, 30, 40}, p.drain(t))
		})
	}
}

func TestAKeyOfAShardThatWentIsNotLookedFor(t *testing.T) {
	p := newLeasedPump(t, RelayConfig{})
	p.put(t, "hot", dialect.OutboxHeld, 1, 2, 3)
	key := hash("hot")
	p.blocked[key] = block{}
	p.ledger.release(key)
	p.lose(t, key, false)
	p.flushAll(t)
	p.rest()
	assert.Zero(t, p.looks(t))
	assert.Empty(t, p.turns)
}

// The look began before the table knew of the message, and it came back after.
func TestWhatIsHeldBackDuringALookIsNotForgotten(t *testing.T) {
	p := newLeasedPump(t, RelayConfig{})
	p.put(t, "hot", dialect.OutboxHeld, 3)
	p.put(t, "hot", dialect.OutboxPending, 6)
	p.reader.last = due
	p.round(t, pending)
	require.Len(t, p.ledger.hold, 1)
	p.rest()
	p.check(hash("hot"))
	p.read(t.Context())
	look := p.await(t)
	require.Equal(t, keys, look.kind)
	p.flushAll(t)
	p.took(look)
	assert.Positive(t, p.looks(t))
	assert.Equal(t, []int64{3, 6}, p.deliver(t))
}

func TestWhatIsConfirmedDuringALookIsNotSentAgain(t *testing.T) {
	p := newLeasedPump(t, RelayConfig{})
	key := hash("hot")
	p.put(t, "hot", dialect.OutboxHeld, 1, 2, 3)
	p.check(key)
	p.reader.last = pending
	p.round(t, keys)
	r := p.away(0)
	p.lose(t, key, true)
	p.rest()
	p.check(key)
	p.turns[key].after = 0
	p.read(t.Context())
	look := p.await(t)
	require.Len(t, look.askings[0].letters, 3)
	for _, l := range r.letters {
		r.fate(l.id, nil)
	}
	p.settle(t.Context(), r)
	p.flushAll(t)
	p.took(look)
	assert.Empty(t, ids(p.lanes[0].queue))
	p.looks(t)
	assert.Empty(t, p.turns)
}

func TestAKeyThatIsOnItsWayIsNotLookedForAllTheTime(t *testing.T) {
	for name, stop := range map[string]func(*pump){
		"the broker does not answer": func(*pump) {},
		"it was read twice":          func(p *pump) { p.check(hash("hot")) },
		"a shard went":               func(p *pump) { p.lose(t, hash("hot"), true); p.check(hash("hot")) },
		"what is behind is about to be held back": func(p *pump) {
			l := mail(90, "hot", "t")
			l.behind = 80
			p.reader.epoch++
			p.took(&reading{kind: pending, epoch: p.reader.epoch, shards: p.shards, limit: 10, letters: []*letter{l}})
			p.check(hash("hot"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newLeasedPump(t, RelayConfig{Batch: 8})
			p.put(t, "hot", dialect.OutboxHeld, 1, 2, 3, 4, 5, 6, 7)
			p.check(hash("hot"))
			p.reader.last = pending
			p.round(t, keys)
			p.away(0)
			stop(p)
			p.rest()
			assert.LessOrEqual(t, p.looks(t), 3)
		})
	}
}

// Shards move while a key is over its cap: whoever comes next sends the rest in order.
func TestWhatIsLetGoIsSentInOrderByWhoComesNext(t *testing.T) {
	for how, stop := range map[string]func(*pump){
		"it closes":      func(p *pump) { p.close() },
		"the shard goes": func(p *pump) { p.lose(t, hash("hot"), false) },
		"it dies":        func(*pump) {},
	} {
		t.Run(how, func(t *testing.T) {
			p := newLeasedPump(t, RelayConfig{Batch: 4})
			p.put(t, "hot", dialect.OutboxPending, 1, 2, 3, 4)
			p.reader.last = due
			p.round(t, pending)
			require.Equal(t, []int64{1, 2}, ids(p.lanes[0].queue))
			stop(p)
			p.flushAll(t)
			assert.Equal(t, []int{0, 0, 2, 2}, p.hot(t))

			next := newPumpOf(t, p.Relay)
			next.joins(t)
			next.config = p.config
			assert.Equal(t, []int64{1, 2, 3, 4}, next.drain(t))
		})
	}
}

// TestManyKeysShareALook: a little of many keys goes out faster than much of a few.
func TestManyKeysShareALook(t *testing.T) {
	p := newTestPump(t, RelayConfig{})
	for i := range 200 {
		key := hash(fmt.Sprint(i))
		p.check(key)
		p.turn(key).limit = p.config.keyCap()
	}
	assert.Greater(t, len(p.askings(time.Now())), 150)
}

func TestLooksForKeysLeaveHalfOfTheRoomToOthers(t *testing.T) {
	p := newTestPump(t, oneLane(RelayConfig{Batch: 100}))
	for i := range 100 {
		p.check(hash(fmt.Sprint(i)))
	}
	require.True(t, p.mayAsk())
	assert.Len(t, p.askings(time.Now()), 50, "of most keys there is little")
	assert.Len(t, p.asks, 50, "the others have their turn")
	for id := range int64(89) {
		l := mail(id+1, "", "t")
		l.drawn = true
		p.hold(l)
	}
	assert.False(t, p.mayAsk())
	assert.False(t, p.cannotTake())
	for id := range int64(89) {
		p.letGo(id + 1)
	}
	assert.Zero(t, p.drawn)
	assert.True(t, p.mayAsk())
}

func TestAllBlockedKeysAreAskedAboutInTurn(t *testing.T) {
	p := newTestPump(t, RelayConfig{})
	for key := range int64(20_010) {
		p.blocked[key] = block{head: key + 1}
	}
	asked := make(map[int64]bool)
	for range 3 {
		heads := p.headsToAsk()
		assert.LessOrEqual(t, len(heads), 10_000)
		for _, key := range heads {
			asked[key] = true
		}
	}
	assert.Len(t, asked, 20_010)
}

func TestAWalkFindsEveryKey(t *testing.T) {
	p := newPumpOf(t, newTestRelay(t, oneLane(RelayConfig{})))
	tx := p.db.MustBegin()
	for i := range 2500 { // three steps; of one key more than a step
		key := int64(i)
		if i >= 1200 {
			key = math.MaxInt64
		}
		_, err := tx.ExecContext(t.Context(), `
			INSERT INTO millrace_outbox (key_hash, blocked_key, status, created_at, topic, uuid, order_key)
			VALUES (?, ?, 2, 1, 't', 'u', 'k')`, key, key)
		require.NoError(t, err)
	}
	require.NoError(t, tx.Commit())
	found := make(map[int64]bool)
	p.reader.walk.restart()
	for looks := 0; p.reader.walk.on; looks++ {
		require.Less(t, looks, 10)
		p.reader.last = due
		p.round(t, pending)
		for _, key := range p.asks {
			found[key] = true
		}
		p.asks = nil // for the test to look for nothing else
		if looks == 0 {
			// A failure does not begin anew, and stops nothing.
			from := p.reader.walk.from
			p.took(&reading{kind: pending, shards: p.shards, limit: 1, walks: true, walkErr: errors.New("too slow")})
			assert.Equal(t, from, p.reader.walk.from)
			assert.Zero(t, p.reader.failures)
			p.reader.walk.at = time.Time{}
		}
	}
	assert.Len(t, found, 1201)
	assert.Greater(t, time.Until(p.reader.walk.at), walkEvery/2)
}

func TestWhatFailsAllTheTimeIsToldAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var toldAt time.Time
		told := 0
		for failures := 1; failures <= 100; failures++ {
			if tellsAgain(&toldAt, failures) {
				told++
			}
			<-time.After(time.Second)
		}
		assert.Equal(t, 4, told)
	})
}

// A key that has a head in the table waits for it, whoever set it aside.
func TestWhatTheTableSaysOfAKey(t *testing.T) {
	for name, of := range map[string]struct {
		statuses []int
		known    bool // it is blocked, as far as the relay knows
		blocked  bool
		sent     []int64
	}{
		"a head is to be tried again":     {statuses: []int{1, 2}, blocked: true},
		"a head is parked":                {statuses: []int{3, 2}, blocked: true},
		"it still is":                     {statuses: []int{3, 2}, known: true, blocked: true},
		"something is before it":          {statuses: []int{2, 3, 2}, blocked: true, sent: []int64{1}},
		"it is before it, as was known":   {statuses: []int{0, 3, 2}, known: true, blocked: true, sent: []int64{1}},
		"nothing blocks what is held":     {statuses: []int{2, 2}, sent: []int64{1, 2}},
		"nothing blocks it any more":      {statuses: []int{2, 2}, known: true, sent: []int64{1, 2}},
		"nothing of it is left":           {known: true},
		"some of it is not yet held back": {statuses: []int{2, 0, 2}, known: true, sent: []int64{1, 2, 3}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newLeasedPump(t, RelayConfig{})
			for i, status := range of.statuses {
				p.put(t, "hot", status, int64(i+1))
			}
			if of.known {
				p.blocked[hash("hot")] = block{}
			}
			p.check(hash("hot"))
			p.rest()
			assert.LessOrEqual(t, p.looks(t), 3)
			_, blocked := p.blocked[hash("hot")]
			assert.Equal(t, of.blocked, blocked)
			assert.ElementsMatch(t, of.sent, p.deliver(t))
		})
	}
}

func TestARelayThatStopsTakesNothingOfAKey(t *testing.T) {
	p := newTestPump(t, oneLane(RelayConfig{}))
	p.check(hash("k"))
	look := &reading{kind: keys, shards: p.shards, askings: p.askings(time.Now())}
	look.askings[0].letters = []*letter{mail(7, "k", "t")}
	p.close()
	p.took(look)
	assert.Empty(t, p.window, "it would wait for it")
}

// What is stored behind much of one key does not wait for it, nor does what was stored before.
func TestTheTailIsReadInTurnWithABacklog(t *testing.T) {
	p := newLeasedPump(t, RelayConfig{Batch: 4})
	for id := range int64(40) {
		p.put(t, "hot", dialect.OutboxPending, id+1)
	}
	p.reader.last = due
	p.round(t, pending)
	require.True(t, p.reader.tail.on)
	p.put(t, "", dialect.OutboxPending, 50)
	p.put(t, "other", dialect.OutboxPending, 51)
	p.flushAll(t)
	p.reader.last, p.asks = due, nil
	p.reader.tail.rest, p.reader.sweepAt = time.Now().Add(time.Hour), time.Now().Add(time.Hour)
	p.round(t, pending)
	assert.Subset(t, ids(p.lanes[0].queue), []int64{50, 51})
}
