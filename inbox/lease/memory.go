package lease

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/millrace-go/millrace/internal/meaning"
)

// Memory is a [Store] in the memory of a process: no other process sees its keys, and they are gone
// when the process ends. The zero value is ready to use; one value serves all handlers of a process.
// It starts no goroutine.
//
// At Limit, Memory forgets the confirmed key whose retention ends first, and counts it in
// [State].Evicted: if a copy of its message comes after some Limit other messages, it is handled
// again. To refuse messages instead would stop the consumer until retentions end, and a restart of
// the process forgets the same keys anyway. Memory never forgets a key in flight; if those alone
// reach Limit, Acquire returns an error.
type Memory struct {
	// Limit bounds the keys that are remembered. Defaults to 250,000, which take some 40 MB once
	// there were so many; a service with 100 messages a second then remembers each for at least 40
	// minutes. If it is negative, Acquire returns an error.
	Limit int

	mu        sync.Mutex
	born      time.Time // its times are nanoseconds since then, by the clock that nobody can set
	inFlight  map[memoryKey]held
	confirmed map[memoryKey]int64 // until when
	queues    []*confirmations    // of the confirmed keys, one for each retention
	numbers   map[consumer]uint32
	last      consumer // that was looked up in numbers
	number    uint32   // of last
}

const defaultLimit = 250_000

// start prepares the zero value. The caller holds the lock.
func (m *Memory) start() {
	if m.inFlight == nil {
		m.born, m.numbers = time.Now(), make(map[consumer]uint32)
		m.inFlight, m.confirmed = make(map[memoryKey]held), make(map[memoryKey]int64)
	}
}

func (m *Memory) limit() int {
	if m.Limit == 0 {
		return defaultLimit
	}
	return m.Limit
}

// consumer is one epoch of a consumer.
type consumer struct {
	name  string
	epoch int
}

// memoryKey is the number of a consumer and the id of a message. It has no pointer, so the garbage
// collector does not scan a map of such keys.
type memoryKey [32]byte

func newMemoryKey(consumer uint32, id string) (k memoryKey) {
	const head = 5
	binary.LittleEndian.PutUint32(k[:], consumer)
	if len(id) <= len(k)-head {
		k[4] = byte(len(id)) //nolint:gosec // at most 27
		copy(k[head:], id)
		return k
	}
	sum := sha256.Sum256([]byte(id))
	k[4] = 0xff // is not the length of an id
	copy(k[head:], sum[:])
	return k
}

type held struct {
	token int64
	until int64
}

func (m *Memory) now() int64 { return int64(time.Since(m.born)) }

// in returns the time after d, or the last that there is.
func (m *Memory) in(d time.Duration) int64 {
	now := m.now()
	return now + min(int64(d), math.MaxInt64-now)
}

// Acquire takes key if it is free and there is room for it.
func (m *Memory) Acquire(_ context.Context, key Key, token int64, lease time.Duration) (State, error) {
	if m.Limit < 0 {
		return State{}, fmt.Errorf("lease: the Limit %d of Memory is negative", m.Limit)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.start()
	now, k := m.now(), m.key(key)
	if until := m.confirmed[k]; until > now {
		return State{Status: Confirmed, Remaining: time.Duration(until - now)}, nil
	}
	has, known := m.inFlight[k]
	if has.until > now {
		return State{Status: Held, Remaining: time.Duration(has.until - now)}, nil
	}
	state := State{Status: Taken, Remaining: lease}
	if !known {
		room, evicted := m.makeRoom(now)
		if !room {
			return State{Evicted: evicted}, errFull
		}
		state.Evicted = evicted
	}
	m.inFlight[k] = held{token: token, until: m.in(lease)}
	return state, nil
}

var errFull = errors.New("as many messages are in flight as the Limit of lease.Memory allows: raise it")

// Confirm records that the message of key was handled.
func (m *Memory) Confirm(_ context.Context, key Key, token int64, retention time.Duration) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.start()
	k := m.key(key)
	if m.inFlight[k].token != token {
		return meaning.ErrLeaseLost
	}
	delete(m.inFlight, k)
	until := m.in(retention)
	m.confirmed[k] = until
	m.queue(retention).push(k, until)
	return nil
}

// Release frees key.
func (m *Memory) Release(_ context.Context, key Key, token int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.start()
	if k := m.key(key); m.inFlight[k].token == token {
		delete(m.inFlight, k)
	}
	return nil
}

// Extend lets the lease end after lease from now.
func (m *Memory) Extend(_ context.Context, key Key, token int64, lease time.Duration) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.start()
	k := m.key(key)
	if m.inFlight[k].token != token {
		return meaning.ErrLeaseLost
	}
	m.inFlight[k] = held{token: token, until: m.in(lease)}
	return nil
}

// key returns key as the map has it. The caller holds the lock.
func (m *Memory) key(key Key) memoryKey {
	if of := (consumer{key.Consumer, key.Epoch}); of != m.last {
		number, known := m.numbers[of]
		if !known {
			number = uint32(len(m.numbers) + 1) //nolint:gosec // consumers are few; 0 is that of the zero last
			m.numbers[of] = number
		}
		m.last, m.number = of, number
	}
	return newMemoryKey(m.number, key.ID)
}

// makeRoom makes room for one more key, if it can, and counts the confirmed keys that it forgot
// before their retention ended. Each call also drops a few expired keys, so that none stays for long.
func (m *Memory) makeRoom(now int64) (room bool, evicted int) {
	const few = 4
	for range few {
		if q := m.oldest(); q == nil || q.head().until > now {
			break
		} else {
			m.drop(q)
		}
	}
	for len(m.inFlight)+len(m.confirmed) >= m.limit() {
		q := m.oldest()
		if q == nil {
			return m.sweep(now), evicted
		}
		early := q.head().until > now
		if m.drop(q) && early {
			evicted++
		}
	}
	return true, evicted
}

// sweep removes leases that ended without being released, and reports whether there is room now. It
// is slow; makeRoom calls it only if all keys are in flight.
func (m *Memory) sweep(now int64) (room bool) {
	for k, has := range m.inFlight {
		if has.until <= now {
			delete(m.inFlight, k)
		}
	}
	return len(m.inFlight) < m.limit()
}

// drop forgets the first key of q, unless it was taken again since it was confirmed.
func (m *Memory) drop(q *confirmations) (dropped bool) {
	first := q.pop()
	if m.confirmed[first.key] != first.until {
		return false
	}
	delete(m.confirmed, first.key)
	return true
}

// oldest returns the queue whose head expires first, or nil if all are empty.
func (m *Memory) oldest() *confirmations {
	var oldest *confirmations
	for _, q := range m.queues {
		if !q.empty() && (oldest == nil || q.head().until < oldest.head().until) {
			oldest = q
		}
	}
	return oldest
}

func (m *Memory) queue(retention time.Duration) *confirmations {
	for _, q := range m.queues {
		if q.retention == retention {
			return q
		}
	}
	q := &confirmations{retention: retention}
	m.queues = append(m.queues, q)
	return q
}

// confirmations are the confirmed keys of one retention, in the order in which they expire: a ring.
type confirmations struct {
	retention time.Duration
	items     []confirmation
	first, n  int // n items, beginning with items[first]
}

type confirmation struct {
	key   memoryKey
	until int64
}

func (q *confirmations) empty() bool         { return q.n == 0 }
func (q *confirmations) head() *confirmation { return &q.items[q.first] }

func (q *confirmations) push(k memoryKey, until int64) {
	if q.n == len(q.items) {
		grown := make([]confirmation, max(16, 2*q.n))
		copy(grown[copy(grown, q.items[q.first:]):], q.items[:q.first])
		q.items, q.first = grown, 0
	}
	q.items[(q.first+q.n)%len(q.items)] = confirmation{k, until}
	q.n++
}

func (q *confirmations) pop() confirmation {
	head := *q.head()
	q.first, q.n = (q.first+1)%len(q.items), q.n-1
	return head
}
