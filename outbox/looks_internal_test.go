package outbox

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"modernc.org/sqlite"

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

// Where SelectPending does not tell: of a long key nobody knows what is before a message.
func TestALookAsksWhatIsBeforeTheMessagesItFound(t *testing.T) {
	p := newLeasedPump(t, RelayConfig{})
	asking := *p.sql
	asking.SelectShortKeys = fmt.Sprintf(`
		SELECT key_hash, id FROM millrace_outbox
		WHERE key_hash IN (SELECT value FROM json_each(?)) AND key_hash <> %d
		ORDER BY id DESC`, hash("long"))
	p.sql = &asking
	p.put(t, "hot", dialect.OutboxHeld, 3)
	p.put(t, "hot", dialect.OutboxPending, 2, 4)
	p.put(t, "long", dialect.OutboxPending, 5)
	found := []*letter{mail(2, "hot", "t"), mail(4, "hot", "t"), mail(5, "long", "t"), mail(6, "", "t")}
	require.NoError(t, p.lookBehind(t.Context(), asking.SelectShortKeys, found, unknown))
	for i, want := range []int64{0, 3, unknown, 0} {
		assert.Equal(t, want, found[i].behind, found[i].id)
	}
}

// While its key was looked for, behind what was in hand, all of that was held back, and then its key was opened.
func TestALookForAKeyThatBeganBehindWhatWasHeldBack(t *testing.T) {
	p := newLeasedPump(t, RelayConfig{Batch: 16})
	p.put(t, "hot", dialect.OutboxPending, 8, 10, 20)
	p.reads(t)
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

// tailed returns a pump that reads behind 20.
func tailed(t *testing.T) *pump {
	t.Helper()
	p := newLeasedPump(t, RelayConfig{})
	p.rest()
	p.reader.tail = tail{on: true, from: 20, at: 20, rest: time.Now().Add(time.Hour)}
	p.reader.last, p.reader.floor.keyed = due, time.Now()
	return p
}

// It would cost a statement, and the look for its key takes it at once.
func TestTheTailLeavesToTheLookForItsKeyWhatThatFinds(t *testing.T) {
	p := tailed(t)
	p.put(t, "k", dialect.OutboxHeld, 10)
	p.put(t, "k", dialect.OutboxPending, 30)
	p.check(hash("k"))
	p.round(t, pending)
	assert.Empty(t, p.ledger.hold)
	assert.Empty(t, p.lanes[0].queue)
	p.rest()
	p.looks(t)
	assert.Equal(t, []int64{10, 30}, ids(p.lanes[0].queue))
}

// It is late where the relay could not look for long, as in an outage: past what others left behind since.
func TestTheLookForAKeyBeginsWithWhatTheTailLeft(t *testing.T) {
	for name, asked := range map[string]bool{"asked for before": true, "asked for by the tail": false} {
		t.Run(name, func(t *testing.T) {
			p := tailed(t)
			p.put(t, "k", dialect.OutboxPending, 50)
			p.round(t, pending)
			require.Equal(t, []int64{50}, ids(p.lanes[0].queue))
			p.put(t, "k", dialect.OutboxPending, 30, 60) // of one transaction
			if asked {
				p.check(hash("k"))
			}
			p.reader.last = due
			p.round(t, pending)
			p.reader.floor.marks = []mark{{time.Now().Add(-2 * horizon), 35}}
			p.rest()
			p.looks(t)
			assert.Equal(t, []int64{50, 30, 60}, ids(p.lanes[0].queue))
		})
	}
}

// The tail is not read again and again for what looks for keys take.
func TestTheTailRestsWhileKeysAreLookedFor(t *testing.T) {
	p := tailed(t)
	p.put(t, "k", dialect.OutboxPending, 30)
	p.check(hash("k"))
	p.round(t, pending)
	assert.False(t, p.reader.tail.next.IsZero())
	p.reader.tail.next = time.Now().Add(time.Minute)
	p.reader.rung()
	assert.False(t, p.reader.called(time.Now()))
	assert.True(t, p.reader.called(p.reader.tail.next))
	p.reader.sweepAt = time.Time{}
	assert.True(t, p.reader.called(time.Now()))
}

// Each wave of a run waits for the one before, and all of the lane for the run.
func TestALaneTakesOfAKeyWhatItTakesOfOthers(t *testing.T) {
	for name, of := range map[string]struct {
		other []string
		burst int
		want  int
	}{
		"alone":                  {nil, 1, 16},
		"beside one":             {[]string{"a"}, 1, 1},
		"beside one without key": {[]string{"", "", "", "", "", ""}, 1, 1},
		"beside another of many": {[]string{"a", "a", "a", "a", "a", "a"}, 1, 6},
		"in bursts":              {[]string{"a", "a", "a", "a", "a", "a"}, 2, 6},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTestPump(t, oneLane(RelayConfig{KeyBurst: of.burst}))
			for id := range int64(30) {
				p.inHand(mail(id+1, "hot", "t"))
			}
			for i, key := range of.other {
				p.inHand(mail(int64(i)+100, key, "t"))
			}
			picked := p.pick(&p.lanes[0])
			require.Len(t, picked, of.want+len(of.other))
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
	assert.Greater(t, len(p.askings()), 150)
}

// Others are found in an eighth of the window though all that looks for keys took hangs, and in half of it where
// they take more than that.
func TestLooksForKeysLeaveRoomToOthers(t *testing.T) {
	p := newTestPump(t, oneLane(RelayConfig{Batch: 100}))
	for i := range 200 {
		p.check(hash(fmt.Sprint(i)))
	}
	fill := func(from, n int64, drawn bool) {
		for id := range n {
			l := mail(from+id, "", "t")
			l.drawn = drawn
			p.hold(l)
		}
	}
	require.True(t, p.mayAsk())
	asked := 0
	for _, one := range p.askings() {
		asked += one.limit
	}
	assert.Equal(t, 175, asked)
	fill(1, 175, true)
	assert.False(t, p.mayAsk())
	assert.False(t, p.cannotTake())
	fill(1000, 20, false)
	assert.True(t, p.cannotTake())
	for id := range int64(30) {
		p.letGo(id + 1)
	}
	assert.Equal(t, 145, p.drawn)
	assert.False(t, p.cannotTake())
	fill(2000, 25, false)
	assert.True(t, p.cannotTake())
	assert.False(t, p.mayAsk(), "others have their turn")
	for id := range int64(90) {
		p.letGo(id + 31)
	}
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

// The connection broke after the server had carried out a statement, and before it said so.
func TestAnAnswerThatIsLostIsNobodyElsesChange(t *testing.T) {
	log := watermill.NewCaptureLogger()
	p := newLeasedPump(t, RelayConfig{Logger: log})
	p.put(t, "k", dialect.OutboxPending, 1, 2)
	p.ledger.sent = []dialect.Row{{ID: 1, StoredAt: 1}}
	loses := func() {
		p.flush(t.Context())
		done := <-p.flusher.done
		done.statements, done.err = done.ledger.statements(p.tables, p.lease.token, 0), io.ErrUnexpectedEOF
		p.flushed(done)
		p.flusher.retryAt = time.Time{}
	}
	loses()
	p.flushAll(t)
	assert.False(t, log.HasError(errChanged))

	p.ledger.postpone = []postponed{{letters: []dialect.Row{{ID: 2, StoredAt: 1}}}}
	p.ledger.sent = []dialect.Row{{ID: 1, StoredAt: 1}}
	loses()
	p.flushAll(t)
	assert.True(t, log.HasError(errChanged), "somebody else has deleted what the second statement was for")
}

// Rows that somebody's transaction can still see make a walk long: what was read before it goes out all the same.
func TestAWalkThatIsCutOffTakesNoPageWithIt(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	onWalk(cancel)
	p := newLeasedPump(t, RelayConfig{Batch: 4})
	p.put(t, "hot", dialect.OutboxPending, 1, 2, 3, 4)
	endless := *p.sql
	endless.ListKeys = `WITH RECURSIVE n (i) AS (SELECT walk_begins() UNION ALL SELECT i + 1 FROM n) SELECT i FROM n WHERE i < 0 AND ? <> ?`
	p.sql = &endless
	r := &reading{kind: pending, limit: 4, shards: p.shards, window: dialect.IDs([]int64{}), walks: true, walkFrom: math.MinInt64, ends: true}
	require.NoError(t, p.look(ctx, r))
	assert.Len(t, r.letters, 4)
	assert.Error(t, r.walkErr)
}

var walkBegins atomic.Value

// registerWalk makes walk_begins() known to SQLite, for connections that are opened from then on.
var registerWalk = sync.OnceFunc(func() {
	sqlite.MustRegisterScalarFunction("walk_begins", 0, func(*sqlite.FunctionContext, []driver.Value) (driver.Value, error) {
		walkBegins.Load().(func())()
		return int64(0), nil
	})
})

// onWalk has the function walk_begins of SQLite call begins.
func onWalk(begins func()) {
	walkBegins.Store(begins)
	registerWalk()
}
