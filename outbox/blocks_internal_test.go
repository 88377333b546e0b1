package outbox

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/dialect"
)

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

// round does one look, of the given kind, and takes what it found.
func (p *pump) round(t *testing.T, want kind) {
	t.Helper()
	p.reader.hungry = true
	p.read(t.Context())
	r := p.await(t)
	require.Equal(t, want, r.kind)
	p.took(r)
}

// hot are the statuses of the messages of the key "hot", in the order of their storing.
func (p *pump) hot(t *testing.T) (statuses []int) {
	t.Helper()
	require.NoError(t, p.db.SelectContext(t.Context(), &statuses,
		`SELECT status FROM millrace_outbox WHERE key_hash = ? ORDER BY id`, hash("hot")))
	return statuses
}

// Of a key with more messages than a lane takes, some are in hand, and all of it is held back in the
// table: a relay that comes next finds no later one pending that an earlier one is held behind.
func TestAKeyWithMuchIsHeldBackWhole(t *testing.T) {
	p := newPumpOf(t, newTestRelay(t, oneLane(RelayConfig{Batch: 4})))
	require.Equal(t, 2, p.config.keyCap())
	_, err := p.exec(t.Context(), p.sql.InsertRelay, p.lease.token, "a relay", time.Hour.Microseconds())
	require.NoError(t, err)
	p.put(t, "hot", dialect.OutboxPending, 1, 2, 3, 4)
	p.put(t, "other", dialect.OutboxPending, 5)
	p.round(t, pending)
	assert.Equal(t, []int64{1, 2}, ids(p.lanes[0].queue))
	r := p.away(0)
	p.flushAll(t)
	assert.Equal(t, []int{2, 2, 2, 2}, p.hot(t))
	p.round(t, pending)
	assert.Equal(t, []int64{5}, ids(p.lanes[0].queue), "others are read")

	// What was stored since waits behind what is held back.
	p.put(t, "hot", dialect.OutboxPending, 6)
	p.round(t, pending)
	assert.Len(t, p.ledger.hold, 1)
	r.fate(1, nil)
	r.fate(2, nil)
	p.settle(t.Context(), r)
	p.flushAll(t)
	assert.Equal(t, []int{2, 2, 2}, p.hot(t))
	p.round(t, held)
	assert.Equal(t, []int64{5, 3, 4}, ids(p.lanes[0].queue))

	// The first of it fails: it is what the others wait for.
	r = p.away(0)
	r.fate(5, nil)
	r.fate(3, Permanent(errRefused))
	p.settle(t.Context(), r)
	assert.Empty(t, p.drains)
	p.flushAll(t)
	assert.Equal(t, []int{1, 2, 2}, p.hot(t))
	assert.Empty(t, p.window)

	// It is sent, and so is the rest, until the key is like any other.
	p.db.MustExec(`UPDATE millrace_outbox SET due_at = 1 WHERE status = 1`)
	p.reader.dueAt, p.reader.last = time.Now(), held
	p.round(t, due)
	var order []int64
	for rounds := 0; len(p.blocked) > 0; rounds++ {
		require.Less(t, rounds, 10)
		if len(p.lanes[0].queue) > 0 {
			r = p.away(0)
			for _, l := range r.letters {
				r.fate(l.id, nil)
			}
			order = append(order, ids(r.letters)...)
			p.settle(t.Context(), r)
			p.flushAll(t)
		}
		p.reader.last = pending
		p.round(t, held)
	}
	assert.Equal(t, []int64{3, 4, 6}, order)
	assert.Empty(t, p.hot(t))
	assert.Empty(t, p.drains)
	assert.Empty(t, p.perKey)
}

// A message that is read as held back, and whose holding back is not yet written off, is not taken:
// nor are those behind it.
func TestWhatIsStillBeingHeldBackIsNotTaken(t *testing.T) {
	p := newTestPump(t, oneLane(RelayConfig{}))
	p.inHand(mail(2, "k", "t"))
	p.lanes[0].queue = nil
	p.open(hash("k"), 1)
	p.took(&reading{kind: held, shards: p.shards, draughts: []draught{{
		drain: p.drains[hash("k")], key: hash("k"), limit: 62, letters: []*letter{mail(1, "k", "t"), mail(2, "k", "t"), mail(3, "k", "t")},
	}}})
	assert.Equal(t, []int64{1}, ids(p.lanes[0].queue))
	assert.Contains(t, p.blocked, hash("k"))
}

// A key is let go only by a look that began when nothing of it was in hand, and saw all of it.
func TestAKeyIsLikeAnyOtherOnlyOnceNothingOfItIsHeldBack(t *testing.T) {
	for name, look := range map[string]struct {
		after  int64
		inHand bool
		gone   bool
	}{
		"it saw what lies behind the last":  {after: 5},
		"one is in hand":                    {inHand: true},
		"it saw everything, and that is it": {gone: true},
	} {
		p := newTestPump(t, oneLane(RelayConfig{}))
		p.open(hash("k"), 1)
		if look.inHand {
			l := mail(1, "k", "t")
			l.front = true
			p.inHand(l)
		}
		p.took(&reading{kind: held, shards: p.shards, draughts: []draught{{
			drain: p.drains[hash("k")], key: hash("k"), after: look.after, limit: 62, whole: look.after == 0,
		}}})
		_, there := p.drains[hash("k")]
		assert.Equal(t, look.gone, !there, name)
	}
}

// What is in hand of a key is dropped when shards move. A look that is under way then must not have
// the key go on behind it.
func TestAKeyBeginsAnewWhenShardsMove(t *testing.T) {
	p := newTestPump(t, oneLane(RelayConfig{}))
	p.open(hash("k"), 1)
	look := &reading{kind: held, shards: p.shards, draughts: p.draughts()}
	look.draughts[0].letters = []*letter{mail(7, "k", "t")}
	p.assign(t.Context(), assignment{generation: 1, count: 1})
	p.assign(t.Context(), assignment{generation: 1, count: 1, mask: 1})
	look.epoch = p.reader.epoch // whatever else would void it
	p.open(hash("k"), 1)
	p.took(look)
	assert.Empty(t, p.lanes[0].queue)
	assert.Zero(t, p.drains[hash("k")].after)
	require.Len(t, p.draughts(), 1)
}

func TestDrainsLeaveHalfOfTheRoomToOthers(t *testing.T) {
	p := newTestPump(t, oneLane(RelayConfig{Batch: 100}))
	for i := range 50 {
		p.open(hash(fmt.Sprint(i)), 1)
	}
	require.True(t, p.mayDrain())
	total := 0
	for _, one := range p.draughts() {
		total += one.limit
	}
	assert.Equal(t, 100, total)
	assert.NotEmpty(t, p.thirsty, "the others have their turn")
	for id := range int64(51) {
		l := mail(id, "", "t")
		l.drawn = true
		p.hold(l)
	}
	assert.False(t, p.mayDrain())
	assert.False(t, p.cannotTake())
}

func TestAllBlockedKeysAreAskedAboutInTurn(t *testing.T) {
	p := newTestPump(t, RelayConfig{})
	const n = 2*mostBlocks + 10
	for key := range int64(n) {
		p.blocked[key] = block{}
	}
	asked := make(map[int64]bool)
	for range 3 {
		some := p.rounds()
		assert.LessOrEqual(t, len(some), mostBlocks)
		for _, key := range some {
			asked[key] = true
		}
	}
	assert.Len(t, asked, n)
}

func TestAWalkFindsEveryKeyThatWaits(t *testing.T) {
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
	p.reader.walk.restart()
	looks := 0
	for ; p.reader.walk.on; looks++ {
		require.Less(t, looks, 10)
		p.round(t, pending)
		p.thirsty = nil // for the test to look for nothing else
		if looks == 0 {
			// A failure does not begin anew, and stops nothing.
			from := p.reader.walk.from
			p.took(&reading{kind: pending, shards: p.shards, limit: 1, walks: true, walkErr: errors.New("too slow")})
			assert.Equal(t, from, p.reader.walk.from)
			assert.Zero(t, p.reader.failures)
			p.reader.walk.at = time.Time{}
		}
	}
	assert.Equal(t, 2, looks)
	assert.Len(t, p.ledger.released, 1201)
	assert.Greater(t, time.Until(p.reader.walk.at), orphansEvery/2)
	assert.True(t, slices.Contains(p.rounds(), math.MaxInt64) || len(p.toAsk) > 0)
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

// A key that has a head in the table waits for it, whoever set it aside; one of another relay's shard is none of ours.
func TestWhatTheTableSaysOfAKey(t *testing.T) {
	key := hash("k")
	for name, of := range map[string]struct {
		aside          aside
		drains, closed bool
		notOurs        bool
		blocked        bool
		released       bool
	}{
		"a head is to be tried again":        {aside: aside{Least: 1, Greatest: 2}, blocked: true},
		"a head is parked":                   {aside: aside{Least: 2, Greatest: 3}, blocked: true},
		"a head came while it goes out":      {aside: aside{Least: 1, Greatest: 2}, drains: true, closed: true, blocked: true},
		"nothing blocks what is held":        {aside: aside{Least: 2, Greatest: 2}, blocked: true, released: true},
		"it goes out already":                {aside: aside{Least: 2, Greatest: 2}, drains: true, blocked: true},
		"nothing is set aside":               {},
		"it is of another relay's shard":     {aside: aside{Least: 2, Greatest: 2}, notOurs: true},
		"a head of another relay's shard is": {aside: aside{Least: 1, Greatest: 2}, notOurs: true},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTestPump(t, oneLane(RelayConfig{}))
			if of.notOurs {
				p.shards.mask = 0
			}
			if of.drains {
				p.open(key, 0)
			}
			of.aside.Key = key
			p.heed(&reading{blocks: map[int64]aside{key: of.aside}})
			_, blocked := p.blocked[key]
			_, drains := p.drains[key]
			assert.Equal(t, of.blocked, blocked)
			assert.Equal(t, of.released, p.ledger.released[key])
			assert.Equal(t, of.drains && !of.closed, drains)
		})
	}
}

func TestARelayThatStopsTakesNothingOfWhatIsHeldBack(t *testing.T) {
	p := newTestPump(t, oneLane(RelayConfig{}))
	p.open(hash("k"), 1)
	look := &reading{kind: held, shards: p.shards, draughts: p.draughts()}
	look.draughts[0].letters = []*letter{mail(7, "k", "t")}
	p.close()
	p.took(look)
	assert.Empty(t, p.window, "it would wait for it")
}
