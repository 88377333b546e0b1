package outbox

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/dialect"
)

// newLeasedPump returns a pump that may write, with all shards.
func newLeasedPump(t *testing.T, config RelayConfig) *pump {
	t.Helper()
	p := newPumpOf(t, newTestRelay(t, oneLane(config)))
	p.joins(t)
	return p
}

func (p *pump) joins(t *testing.T) {
	t.Helper()
	_, err := p.db.Exec(t.Context(), p.sql.InsertRelay, p.lease.token, "a relay", time.Hour.Microseconds())
	require.NoError(t, err)
}

// lose takes the shard of a key away, or the other one.
func (p *pump) lose(t *testing.T, key int64, other bool) {
	t.Helper()
	shard := shardOf(key)
	if other {
		shard ^= 1
	}
	p.assign(t.Context(), allShards&^(1<<shard))
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
			VALUES (?, ?, ?, ?, 0, 't', ?, ?)`, id, hash(key), blocked, status, fmt.Sprint(id), key)
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

// reads does one look at what is pending, from the first.
func (p *pump) reads(t *testing.T) {
	t.Helper()
	p.reader.last, p.reader.tail = due, tail{}
	p.round(t, pending)
}

// rest has no look called for but for keys.
func (p *pump) rest() {
	r := &p.reader
	r.hungry, r.dueAt = false, time.Time{}
	r.sweepAt, r.lookAt, r.walk = time.Now().Add(time.Hour), time.Now().Add(time.Hour), walk{at: time.Now().Add(time.Hour)}
}

// pass has the time d pass, in which nothing is read.
func (p *pump) pass(d time.Duration) {
	for i := range p.reader.floor.marks {
		p.reader.floor.marks[i].at = p.reader.floor.marks[i].at.Add(-d)
	}
	for _, t := range p.turns {
		t.since = t.since.Add(-d)
	}
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
