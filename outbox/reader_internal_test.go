package outbox

import (
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/dialect"
)

var errDatabase = errors.New("the database is gone")

// await waits for the look that [pump.read] began.
func (p *pump) await(t *testing.T) *reading {
	t.Helper()
	require.True(t, p.reader.busy, "no look began")
	return <-p.reader.done
}

// flushAll waits for the ledger to be in the table.
func (p *pump) flushAll(t *testing.T) {
	t.Helper()
	p.flush(t.Context())
	require.True(t, p.flusher.busy, "there is nothing to write")
	p.flushed(<-p.flusher.done)
	if p.lease.doubtful() { // there is no keeper
		p.lease.resolved.Store(p.lease.doubts.Load())
		p.flushAll(t)
	}
}

func TestTheFloorStaysBelowWhatATransactionMayStillStore(t *testing.T) {
	began := time.Now()
	at := func(s float64) time.Time { return began.Add(time.Duration(s * float64(time.Second))) }
	var f floor
	f.seen(at(0), 10)
	f.seen(at(0.5), 15) // too soon for a mark of its own
	f.seen(at(1.5), 20)
	f.seen(at(1.6), 5)
	f.seen(at(40), 30)
	for _, want := range []struct {
		now   float64
		keyed float64
		id    int64
	}{
		{now: 1, keyed: -1000, id: 0},
		{now: 2.5, keyed: -1000, id: 10},
		{now: 4, keyed: -1000, id: 20},
		{now: 4, keyed: 3, id: 0},
		{now: 30.5, keyed: 3, id: 10},
		{now: 31, keyed: 3, id: 10},
		{now: 32, keyed: 3, id: 20},
		{now: 41, keyed: 3, id: 20},
		{now: 41, keyed: -1000, id: 20},
		{now: 43, keyed: -1000, id: 30},
		{now: 71, keyed: 3, id: 30},
		{now: 700, keyed: 3, id: 30},
	} {
		f.keyed = at(want.keyed)
		assert.Equal(t, want.id, f.id(at(want.now)), "%+v", want)
	}
	assert.LessOrEqual(t, len(f.marks), 2, "old marks are dropped")
}

// A look that began above the floor of messages without order may have passed over the
// first message that has one.
func TestTheFirstMessageOfAKeyIsLookedForFromFurtherBack(t *testing.T) {
	p := newTestPump(t, oneLane(RelayConfig{}))
	look := &reading{kind: pending, after: 7, limit: 10, letters: []*letter{mail(9, "k", "t")}, shards: p.shards}
	p.took(look)
	assert.Empty(t, p.window, "there may be an earlier one of the key")
	assert.True(t, p.reader.hungry)
	p.took(look)
	assert.Len(t, p.window, 1, "the floor was that of messages with an order")
}

func TestLooksForNewMessagesAndForThoseThatAreDueTakeTurns(t *testing.T) {
	p := newPumpOf(t, newTestRelay(t, oneLane(RelayConfig{})))
	var kinds []kind
	for range 4 {
		p.reader.hungry, p.reader.dueAt = true, time.Now()
		p.read(t.Context())
		look := p.await(t)
		kinds = append(kinds, look.kind)
		p.took(look)
	}
	assert.Equal(t, []kind{due, pending, due, pending}, kinds)
}

func TestAMessageThatIsDueIsNotForgotten(t *testing.T) {
	p := newPumpOf(t, newTestRelay(t, oneLane(RelayConfig{})))
	for name, spoil := range map[string]func(*reading){
		"the look failed":    func(r *reading) { r.err = errDatabase },
		"the look is void":   func(r *reading) { r.epoch-- },
		"there are more":     func(r *reading) { r.letters, r.limit = []*letter{mail(1, "", "t")}, 1 },
		"one became due now": func(*reading) { p.dueIn(time.Now(), 0) },
	} {
		p.reader.dueAt, p.reader.failures = time.Now(), 0
		p.reader.last = keys
		p.read(t.Context())
		look := p.await(t)
		require.Equal(t, due, look.kind)
		assert.True(t, p.reader.dueAt.IsZero())
		spoil(look)
		p.took(look)
		assert.False(t, p.reader.dueAt.IsZero(), name)
	}
}

// The table counts a delay from the moment of writing: a look before that finds nothing,
// and the next one is a sweep.
func TestAMessageIsLookedForAgainOnlyOnceTheTableKnowsWhen(t *testing.T) {
	p := newPumpOf(t, newTestRelay(t, oneLane(RelayConfig{MinBackoff: time.Hour, MaxBackoff: time.Hour})))
	p.inHand(mail(1, "", "t"), mail(2, "", "t"))
	r := p.away(0)
	r.fate(1, Permanent(errRefused))
	r.fate(2, nil)
	p.settle(t.Context(), r)
	assert.True(t, p.reader.dueAt.IsZero())
	p.flushAll(t)
	assert.Greater(t, time.Until(p.reader.dueAt), 10*time.Minute)

	p.postpone([]*letter{mail(3, "", "t")}, time.Minute, errRefused)
	p.flushAll(t)
	assert.Less(t, time.Until(p.reader.dueAt), 2*time.Minute)

	p.reader.dueAt = time.Time{}
	p.park(t.Context(), mail(4, "", "t"), errRefused)
	p.flushAll(t)
	assert.True(t, p.reader.dueAt.IsZero())
}

// What is found while a relay waits for no more messages would keep it for ever.
func TestABatchTakesWhatIsThereAndNoMore(t *testing.T) {
	p := newTestPump(t, oneLane(RelayConfig{}))
	p.once = true
	found := func(n int, aside bool) {
		look := &reading{kind: pending, aside: aside, limit: 2, epoch: p.reader.epoch, shards: p.shards}
		for range n {
			look.letters = append(look.letters, mail(int64(len(p.window)+len(look.letters)+1), "", "t"))
		}
		p.took(look)
	}
	found(2, true)
	assert.False(t, p.cannotTake(), "there may be more")
	found(1, false)
	assert.False(t, p.cannotTake(), "there may be more below where it looked")
	found(1, true)
	assert.True(t, p.cannotTake())
	p.window = make(map[int64]*letter)
	require.True(t, p.finished())
	p.ledger.release(hash("k"))
	p.flushed(&flush{ledger: p.ledger})
	p.ledger = newLedger(2)
	assert.False(t, p.finished(), "a key was released")
}

// A message that is due is so in the table until it is written off, also while it is in
// hand in an outage.
func TestABatchLooksForWhatIsDueOnce(t *testing.T) {
	p := newTestPump(t, oneLane(RelayConfig{}))
	p.once = true
	late := sql.NullInt64{Int64: -1, Valid: true}
	sweep := &reading{kind: pending, aside: true, limit: 2, shards: p.shards, nextDue: late, began: time.Now()}
	p.took(sweep)
	assert.False(t, p.cannotTake())
	p.took(&reading{kind: due, limit: 2, shards: p.shards, letters: []*letter{mail(1, "", "t"), mail(2, "", "t")}})
	p.took(sweep)
	assert.False(t, p.cannotTake(), "there may be more")
	p.took(&reading{kind: due, limit: 2, shards: p.shards, letters: []*letter{mail(3, "", "t")}})
	p.took(sweep)
	assert.True(t, p.cannotTake())
}

func TestABlockIsMissedInTheTableOnlyOnceItWasThere(t *testing.T) {
	p := newLeasedPump(t, RelayConfig{})
	p.put(t, "k", dialect.OutboxPending, 1)
	head := mail(1, "k", "t")
	p.inHand(head)
	r := p.away(0)
	r.fate(1, Permanent(errRefused))
	p.settle(t.Context(), r)
	begin := func() *reading {
		return &reading{
			kind: keys, shards: p.shards, epoch: p.reader.epoch, ledger: p.flusher.written,
			askings: []asking{{key: head.hash, limit: 1}},
		}
	}
	blocked := func() bool {
		p.took(begin())
		_, blocked := p.blocked[head.hash]
		return blocked
	}
	assert.True(t, blocked(), "it is not written yet")
	p.flush(t.Context())
	require.True(t, blocked(), "it is being written")
	early := begin()
	p.flushed(<-p.flusher.done)
	p.took(early)
	require.Contains(t, p.blocked, head.hash, "the look may have been before the writing")
	require.False(t, blocked())
}

func TestADatabaseThatCouldNotBeReadIsReadFromTheStart(t *testing.T) {
	s := newSweeps(t)
	s.reader.at, s.reader.sweepAt = 100, time.Now().Add(time.Hour)
	s.reader.floor.seen(time.Now().Add(-time.Hour), 100)
	require.Equal(t, int64(100), s.reader.floor.id(time.Now()))
	s.took(&reading{kind: due, began: time.Now(), err: errDatabase})
	assert.Zero(t, s.reader.floor.id(time.Now()), "another server may have taken over, with smaller ids")
	assert.True(t, s.next().aside)
}

// A look that takes too long would do so again.
func TestALookAfterOneThatFailedAsksForLess(t *testing.T) {
	p := newLeasedPump(t, RelayConfig{Batch: 100})
	for id := range int64(60) {
		p.put(t, "k", dialect.OutboxPending, id+1)
	}
	var limits []int
	for _, err := range []error{errDatabase, errDatabase, nil, nil} {
		p.reader.last, p.reader.lookAt, p.reader.hungry = keys, time.Time{}, true
		p.read(t.Context())
		r := p.await(t)
		require.Equal(t, pending, r.kind)
		limits = append(limits, r.limit)
		r.err = err
		p.took(r)
	}
	assert.Equal(t, []int{100, 50, 25, 50}, limits)
}

// Otherwise a backlog of them would take all memory.
func TestLargeMessagesAreReadFewAtATime(t *testing.T) {
	p := newLeasedPump(t, RelayConfig{})
	p.put(t, "k", dialect.OutboxPending, 1)
	_, err := p.db.ExecContext(t.Context(), `UPDATE millrace_outbox SET payload = zeroblob(1000), metadata = '{}'`)
	require.NoError(t, err)
	p.reads(t)
	assert.Equal(t, 1002, p.bytes)
	p.deliver(t)
	p.flushAll(t)
	assert.Zero(t, p.bytes)

	look := &reading{kind: pending, limit: 16, epoch: p.reader.epoch, shards: p.shards}
	for id := range int64(16) {
		l := mail(id+1, "", "t")
		l.bytes = 4 << 20
		look.letters = append(look.letters, l)
	}
	p.took(look)
	assert.Len(t, p.window, 16)
	assert.True(t, p.cannotTake())
	p.check(hash("k"))
	assert.False(t, p.mayAsk())
	p.letGo(1)
	assert.False(t, p.cannotTake())
	require.True(t, p.mayAsk())
	p.reader.last = due
	p.read(t.Context())
	assert.Equal(t, 8, p.await(t).limit)
}

func TestAHeadThatIsInHandBlocksThoughTheTableDoesNotSaySo(t *testing.T) {
	p := newTestPump(t, oneLane(RelayConfig{}))
	key := hash("k")
	p.window[1], p.blocked[key] = &letter{id: 1, hash: key, keyed: true}, block{head: 1}
	found := &reading{kind: keys, ledger: 1, shards: p.shards, askings: []asking{{key: key, limit: 1}}}
	p.took(found)
	assert.Contains(t, p.blocked, key, "it is kept to probe with")
	delete(p.window, 1)
	p.took(found)
	assert.NotContains(t, p.blocked, key, "an operator discarded it")
}
