package outbox

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/dialect"
)

// Of a key with more messages than a lane takes some are in hand, and the others held back, where they
// are not in the way.
func TestOfAKeyWithMuchSomeIsInHand(t *testing.T) {
	p := newLeasedPump(t, RelayConfig{Batch: 4})
	require.Equal(t, 2, p.config.keyCap())
	p.put(t, "hot", dialect.OutboxPending, 1, 2, 3, 4)
	p.put(t, "other", dialect.OutboxPending, 5)
	p.reads(t)
	assert.Equal(t, []int64{1, 2}, ids(p.lanes[0].queue))
	r := p.away(0)
	p.flushAll(t)
	assert.Equal(t, []int{0, 0, 2, 2}, p.hot(t))
	p.reads(t)
	assert.Equal(t, []int64{5}, ids(p.lanes[0].queue), "others are read")

	// What was stored since is behind what is held back.
	p.put(t, "hot", dialect.OutboxPending, 6)
	p.reads(t)
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
	p.reads(t)
	p.flushAll(t)
	p.put(t, "hot", dialect.OutboxPending, 15)
	p.reader.sweepAt = time.Time{}
	p.reads(t)
	require.Equal(t, []int64{15, 50}, ids(p.ledger.hold))
	assert.Equal(t, []int64{10, 20, 15, 30, 40, 50}, p.drain(t))
}

// It was held back, and before its key is looked for the next one is stored, of which all that is before it
// is in hand.
func TestWhatWasHeldBackIsNotForgottenForWhatIsStoredNext(t *testing.T) {
	p := newLeasedPump(t, RelayConfig{Batch: 4})
	p.put(t, "hot", dialect.OutboxPending, 10, 20)
	p.reads(t)
	p.put(t, "hot", dialect.OutboxPending, 5) // its transaction was open for long
	p.reader.sweepAt = time.Time{}
	p.reads(t)
	require.Equal(t, []int64{5}, ids(p.ledger.hold))
	r := p.away(0)
	r.fate(10, nil)
	p.settle(t.Context(), r)
	p.flushAll(t)
	p.put(t, "hot", dialect.OutboxPending, 30)
	p.reads(t)
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
			p.reads(t)
			p.put(t, "hot", dialect.OutboxPending, 10, 15, 30, 40)
			next(p)
			p.reader.last = keys
			assert.Positive(t, p.looks(t))
			assert.Equal(t, []int64{20, 10, 15, 30, 40}, p.drain(t))
		})
	}
}

// Nothing was read for longer than a transaction may be open, as in an outage. Of one that was open before, all
// goes out in its order.
func TestALookForAKeyBeginsWhereItWasLastRead(t *testing.T) {
	p := newLeasedPump(t, RelayConfig{Batch: 16})
	p.reader.floor.marks = []mark{{time.Now().Add(-3 * horizon), 5}, {time.Now().Add(-5 * time.Second), 15}}
	p.put(t, "hot", dialect.OutboxPending, 20)
	p.reads(t)
	p.put(t, "hot", dialect.OutboxPending, 10, 30, 40)
	p.pass(horizon + time.Second)
	p.check(hash("hot"))
	p.rest()
	p.reader.last = due
	assert.Positive(t, p.looks(t))
	assert.Equal(t, []int64{20, 10, 30, 40}, p.drain(t))
}

// What was sent of a key is passed over as soon as it was read.
func TestTheFloorOfAKeyRisesWithEachLook(t *testing.T) {
	p := newLeasedPump(t, RelayConfig{Batch: 16})
	now := time.Now()
	p.reader.floor.marks = []mark{{now.Add(-2 * horizon), 5}, {now.Add(-horizon + time.Minute), 15}}
	p.put(t, "hot", dialect.OutboxPending, 20)
	p.reads(t)
	after := func() int64 {
		p.check(hash("hot"))
		one := p.askings()[0]
		p.check(hash("hot"))
		return one.after
	}
	assert.Equal(t, int64(5), after())
	p.pass(2 * time.Minute)
	assert.Equal(t, int64(5), after(), "it was not read since")
	p.rest()
	p.reader.last = due
	assert.Positive(t, p.looks(t))
	assert.Equal(t, int64(15), after())
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
	p.reads(t)
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
			p.reads(t)
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
	look := &reading{kind: keys, shards: p.shards, askings: p.askings()}
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
	p.reads(t)
	require.True(t, p.reader.tail.on)
	p.put(t, "", dialect.OutboxPending, 50)
	p.put(t, "other", dialect.OutboxPending, 51)
	p.flushAll(t)
	p.reader.last, p.asks = due, nil
	p.reader.tail.rest, p.reader.sweepAt = time.Now().Add(time.Hour), time.Now().Add(time.Hour)
	p.round(t, pending)
	assert.Subset(t, ids(p.lanes[0].queue), []int64{50, 51})
}
