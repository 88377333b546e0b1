package outbox

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// world is an outbox with two relays, of which each step may come at any time.
type world struct {
	*testing.T
	*rand.Rand
	relay  *Relay
	actors [2]*actor
	moving bool  // shards are on their way from one to the other
	last   int64 // id
	calm   bool  // nothing fails any more
	sent   map[int64]int
	again  map[int64]bool // who had it died, so it may be sent again
	trace  []string
	open   map[string]*storing
	of     map[int64]*storing // by id
}

// storing is a transaction that stores messages of a key.
type storing struct {
	ids   []int64
	began int64 // the last id before it
	ended int64 // the last id when it was committed
}

// actor is a relay, and what it has begun and not ended.
type actor struct {
	*pump
	look    *reading
	away    *run
	writing *flush
}

func (w *world) join(shards shardSet) *actor {
	p := newPumpOf(w.T, w.relay)
	p.joins(w.T)
	p.shards = shards
	return &actor{pump: p}
}

func (w *world) did(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf(format, args...))
}

// send has the broker take or refuse what a lane has.
func (w *world) send(a *actor) {
	r := a.pump.away(0)
	stopped := make(map[int64]bool)
	for _, l := range r.letters {
		switch {
		case stopped[l.hash]:
		case !w.calm && w.IntN(6) == 0:
			w.did("fails %d", l.id)
			r.fate(l.id, Permanent(errRefused))
			stopped[l.hash] = true
		default:
			w.did("sends %d", l.id)
			r.fate(l.id, nil)
			if w.sent[l.id]++; w.sent[l.id] == 1 {
				w.inTurn(l)
			}
			require.True(w, w.sent[l.id] == 1 || w.again[l.id], "%d is sent twice\n%v", l.id, w.trace)
		}
	}
	a.away = r
}

// act has a relay do one of the things it can do.
func (w *world) act(a *actor) {
	switch w.IntN(6) {
	case 0:
		if a.look == nil {
			a.reader.hungry = true
			if w.IntN(2) == 0 {
				a.reader.sweepAt = time.Time{}
			}
			if a.read(w.Context()); a.reader.busy {
				a.look = <-a.reader.done
				w.did("look %d after %d", a.look.kind, a.look.after)
			}
		}
	case 1:
		if a.look != nil {
			a.took(a.look)
			a.look = nil
			w.did("took, in hand %v", ids(a.lanes[0].queue))
		}
	case 2:
		if !a.lanes[0].busy && len(a.lanes[0].queue) > 0 {
			w.send(a)
		}
	case 3:
		if a.away != nil {
			a.settle(w.Context(), a.away)
			a.away = nil
		}
	case 4:
		if a.flush(w.Context()); a.writing == nil && a.flusher.busy {
			a.writing = <-a.flusher.done
			require.NoError(w, a.writing.err)
			require.Zero(w, a.writing.missing, "%v", w.trace)
		}
	case 5:
		if a.writing != nil {
			a.flushed(a.writing)
			a.writing = nil
		}
	}
}

// happen has something happen to the outbox.
func (w *world) happen() {
	switch w.IntN(7) {
	case 0, 1:
		w.store(string(rune('a' + w.IntN(4))))
	case 2:
		w.relay.db.MustExec(`UPDATE millrace_outbox SET due_at = 1 WHERE status = 1`)
		for _, a := range w.actors {
			a.reader.dueAt = time.Now()
		}
	case 3:
		w.relay.db.MustExec(`DELETE FROM millrace_outbox WHERE id = (SELECT MIN(id) FROM millrace_outbox WHERE status = 3)`)
	case 4:
		w.relay.db.MustExec(`UPDATE millrace_outbox SET status = 1, due_at = 1, attempts = 0
			WHERE id = (SELECT MAX(id) FROM millrace_outbox WHERE status = 3)`)
	case 5:
		if w.IntN(4) == 0 && !w.moving {
			w.die(w.IntN(2))
		}
	case 6:
		w.move()
	}
}

// store has a transaction store messages of a key, which another one may do, too, that is open.
func (w *world) store(key string) {
	short := &storing{began: w.last}
	for range 1 + w.IntN(6) {
		at := short
		if long := w.open[key]; w.IntN(3) == 0 {
			if long == nil {
				long = &storing{began: w.last}
				w.open[key] = long
			}
			at = long
		}
		w.last++
		at.ids, w.of[w.last] = append(at.ids, w.last), at
	}
	w.commit(key, short)
	if long := w.open[key]; long != nil && w.IntN(3) == 0 {
		w.commit(key, long)
		delete(w.open, key)
	}
}

func (w *world) commit(key string, s *storing) {
	s.ended = w.last
	w.actors[0].put(w.T, key, 0, s.ids...)
	w.did("commits %d of %s", s.ids, key)
}

// inTurn sees that a message goes out after those of its key that were stored earlier in its transaction,
// or in one that had ended when that began.
func (w *world) inTurn(l *letter) {
	var unsent []int64
	require.NoError(w, w.relay.db.Select(&unsent, `SELECT id FROM millrace_outbox
		WHERE key_hash = ? AND (status IN (0, 2) OR blocked_key IS NOT NULL)`, l.hash))
	for _, id := range unsent {
		before := w.of[id].ended <= w.of[l.id].began || w.of[id] == w.of[l.id] && id < l.id
		require.False(w, before && w.sent[id] == 0, "%d goes out before %d\n%v", l.id, id, w.trace)
	}
}

// die has another relay take the shards of one at once, which had a chance to write what it was writing.
func (w *world) die(i int) {
	a := w.actors[i]
	for id := range a.window {
		w.again[id] = true
	}
	w.relay.db.MustExec(`DELETE FROM millrace_outbox_relays WHERE token = ?`, a.lease.token)
	w.did("relay %d dies", i)
	w.actors[i] = w.join(a.shards)
}

// odd are the shards with odd numbers.
const odd = shardSet(0xaaaaaaaaaaaaaaaa)

// move gives half of the shards from one relay to the other, when nothing of them is in hand any more.
func (w *world) move() {
	from, to := w.actors[0], w.actors[1]
	if from.shards == 0 {
		from, to = to, from
	}
	if !w.moving {
		if w.IntN(3) > 0 {
			return
		}
		half := odd
		if from.shards&half == 0 {
			half = ^odd
		}
		w.did("half of the shards is to go")
		w.moving = true
		from.assign(w.T.Context(), from.shards&^half)
		return
	}
	var all shardSet
	for _, a := range w.actors {
		for _, l := range a.window {
			if !a.keeps(l) {
				return
			}
		}
		all |= a.shards
	}
	w.moving = false
	w.did("they went")
	to.assign(w.T.Context(), to.shards|^all)
}

// TestNothingOvertakesWhateverHappens: messages of a key are sent once, in their order, however looks, the
// broker's answers and writing follow one another, while messages fail, are discarded, relays die, and
// transactions of a key overlap.
func TestNothingOvertakesWhateverHappens(t *testing.T) {
	for seed := range uint64(orderRounds()) {
		w := &world{
			T: t, Rand: rand.New(rand.NewPCG(seed, 1)), //nolint:gosec // a test
			sent: make(map[int64]int), again: make(map[int64]bool),
			open: make(map[string]*storing), of: make(map[int64]*storing),
		}
		config := oneLane(RelayConfig{Batch: 4 + w.IntN(12), MaxAttempts: 2})
		if w.IntN(3) == 0 {
			config.OnParked = Continue
		}
		w.relay = newTestRelay(t, config)
		w.actors = [2]*actor{w.join(odd), w.join(^odd)}
		for range 6 {
			w.store(string(rune('a' + w.IntN(4))))
		}
		w.relay.db.MustExec(`UPDATE millrace_outbox SET status = 3, blocked_key = key_hash`) // as after a restore
		for range 400 {
			if w.IntN(6) == 0 {
				w.happen()
			}
			w.act(w.actors[w.IntN(2)])
		}
		w.end()
		require.NoError(t, w.relay.db.Close())
	}
}

// end has everything go out.
func (w *world) end() {
	w.calm = true
	for key, s := range w.open {
		w.commit(key, s)
	}
	left := func() (n int) {
		require.NoError(w, w.relay.db.Get(&n, `SELECT COUNT(*) FROM millrace_outbox`))
		return n
	}
	for rounds := 0; left() > 0; rounds++ {
		require.Less(w, rounds, 3000, "something is stuck\n%v", w.trace)
		w.relay.db.MustExec(`UPDATE millrace_outbox SET due_at = 1 WHERE status = 1`)
		w.relay.db.MustExec(`DELETE FROM millrace_outbox WHERE status = 3`)
		if w.moving {
			w.move()
		}
		for _, a := range w.actors {
			a.reader.dueAt = time.Now()
			w.act(a)
		}
	}
}

func orderRounds() int {
	if os.Getenv("MILLRACE_TEST_LONG") == "1" {
		return 200
	}
	return 8
}
