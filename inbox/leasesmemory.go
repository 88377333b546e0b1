package inbox

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/millrace/internal/steady"
	"github.com/millrace-go/millrace/internal/stored"
)

// MemoryLeasesConfig is how much [NewMemoryLeases] remembers. The zero value is right for
// most services.
type MemoryLeasesConfig struct {
	// Limit bounds the keys that are remembered. Defaults to 250,000, which take some 40 MB
	// once there were so many; a service with 100 messages a second then remembers each for
	// at least 40 minutes.
	Limit int

	// Logger hears what a person must know. Defaults to none.
	Logger watermill.LoggerAdapter

	// Observers are told of decisions: see [LeasesConfig].
	Observers []Observer
}

// NewMemoryLeases returns leases kept in the memory of this process: it alone knows them,
// and forgets them when it ends. They start no goroutine.
//
// When Limit is reached, the confirmed key whose retention ends first is forgotten, which
// is logged once and told as [KindEvicted]: a copy of its message that comes later
// than some Limit others is handled again. Refusing messages instead would stop the
// consumer until retentions end, to prevent what a restart of the process does anyway. A
// key in flight is never forgotten; where those alone reach Limit, messages are refused.
func NewMemoryLeases(config MemoryLeasesConfig) (*Leases, error) {
	if config.Limit < 0 {
		return nil, fmt.Errorf("inbox: invalid MemoryLeasesConfig: Limit %d is negative", config.Limit)
	}
	if config.Limit == 0 {
		config.Limit = 250_000
	}
	if config.Logger == nil {
		config.Logger = watermill.NopLogger{}
	}
	m := &memoryLeases{
		born:      time.Now(),
		seed:      maphash.MakeSeed(),
		numbers:   make(map[stored.Name]uint32),
		log:       steady.Logger(config.Logger, nil),
		observers: newObservers(config.Observers),
	}
	const shards, perShard = 64, 256 // fewer keys are not worth spreading
	m.shards = make([]memoryShard, 1)
	if config.Limit >= shards*perShard {
		m.shards = make([]memoryShard, shards)
	}
	for i := range m.shards {
		m.shards[i].keys = make(map[memoryKey]memoryLease)
		m.shards[i].limit = config.Limit / len(m.shards)
	}
	return NewLeases(m, LeasesConfig{Logger: config.Logger, Observers: config.Observers}), nil
}

// memoryLeases is a [LeaseStore]. Its times are nanoseconds since it was born, by the
// clock that nobody can set.
type memoryLeases struct {
	born      time.Time
	seed      maphash.Seed
	shards    []memoryShard // a power of two
	log       watermill.LoggerAdapter
	observers observers
	warned    sync.Once

	mu      sync.RWMutex
	numbers map[stored.Name]uint32
}

// memoryKey is a consumer's number and a message's id, without a pointer: a map of many
// such keys costs the garbage collector nothing.
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
	k[4] = 0xff // no length of an id
	copy(k[head:], sum[:])
	return k
}

type memoryLease struct {
	token int64 // 0: confirmed
	until int64
}

type memoryShard struct {
	mu        sync.Mutex
	limit     int
	keys      map[memoryKey]memoryLease
	confirmed []*confirmations // one for each retention
	_         [64]byte         // keeps the locks of two shards out of one cache line
}

func (m *memoryLeases) now() int64 { return int64(time.Since(m.born)) }

func (m *memoryLeases) Acquire(ctx context.Context, key LeaseKey, token int64, lease time.Duration) (LeaseState, error) {
	shard, k := m.find(key)
	now := m.now()
	shard.mu.Lock()
	held, known := shard.keys[k]
	if known && held.until > now {
		shard.mu.Unlock()
		state := LeaseState{Status: LeaseHeld, Remaining: time.Duration(held.until - now)}
		if held.token == 0 {
			state.Status = LeaseConfirmed
		}
		return state, nil
	}
	room, evicted := true, 0
	if !known {
		room, evicted = shard.makeRoom(now)
	}
	if room {
		shard.keys[k] = memoryLease{token: token, until: now + int64(lease)}
	}
	shard.mu.Unlock()
	if evicted > 0 {
		m.observeEvicted(ctx, evicted)
	}
	if !room {
		return LeaseState{}, errMemoryFull
	}
	return LeaseState{Status: LeaseTaken, Remaining: lease}, nil
}

var (
	errMemoryFull = errors.New("as many messages are in flight as MemoryLeasesConfig.Limit allows: raise it")
	errEvicted    = errors.New("copies of their messages are handled again: raise MemoryLeasesConfig.Limit, " +
		"or shorten Retention to what is really remembered")
)

func (m *memoryLeases) Confirm(_ context.Context, key LeaseKey, token int64, retention time.Duration) error {
	shard, k := m.find(key)
	until := m.now() + int64(retention)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if held := shard.keys[k]; held.token != token {
		return ErrLeaseLost
	}
	shard.keys[k] = memoryLease{until: until}
	shard.queue(retention).push(k, until)
	return nil
}

func (m *memoryLeases) Release(_ context.Context, key LeaseKey, token int64) error {
	shard, k := m.find(key)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if held := shard.keys[k]; held.token == token {
		delete(shard.keys, k)
	}
	return nil
}

func (m *memoryLeases) Extend(_ context.Context, key LeaseKey, token int64, lease time.Duration) error {
	shard, k := m.find(key)
	until := m.now() + int64(lease)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if held := shard.keys[k]; held.token != token {
		return ErrLeaseLost
	}
	shard.keys[k] = memoryLease{token: token, until: until}
	return nil
}

func (m *memoryLeases) find(key LeaseKey) (*memoryShard, memoryKey) {
	name := stored.Name{Name: key.Consumer, Epoch: key.Epoch}
	m.mu.RLock()
	number, known := m.numbers[name]
	m.mu.RUnlock()
	if !known {
		m.mu.Lock()
		if number, known = m.numbers[name]; !known {
			number = uint32(len(m.numbers)) //nolint:gosec // consumers are few
			m.numbers[name] = number
		}
		m.mu.Unlock()
	}
	k := newMemoryKey(number, key.ID)
	hash := maphash.Bytes(m.seed, k[:])
	return &m.shards[hash&uint64(len(m.shards)-1)], k
}

func (m *memoryLeases) observeEvicted(ctx context.Context, n int) {
	m.warned.Do(func() {
		m.log.Error("inbox: keys were forgotten before their retention was over; said once", errEvicted, nil)
	})
	m.observers.tell(ctx, KindEvicted, Event{Reason: "memory full", Count: n})
}

// makeRoom lets one more key in, if it can, and counts the keys that were forgotten before
// their time. It drops a few expired ones whenever it is called, so that none stay for long.
func (s *memoryShard) makeRoom(now int64) (room bool, evicted int) {
	const few = 4
	for range few {
		if q := s.oldest(); q == nil || q.head().until > now {
			break
		} else {
			s.drop(q)
		}
	}
	for len(s.keys) >= s.limit {
		q := s.oldest()
		if q == nil {
			return s.sweep(now), evicted
		}
		early := q.head().until > now
		if s.drop(q) && early {
			evicted++
		}
	}
	return true, evicted
}

// sweep removes leases that ended and that nobody gave back, and reports whether there is
// room now. It is slow, and called only where all keys are in flight.
func (s *memoryShard) sweep(now int64) (room bool) {
	for k, held := range s.keys {
		if held.until <= now {
			delete(s.keys, k)
		}
	}
	return len(s.keys) < s.limit
}

// drop forgets the key that was confirmed first in q, unless it was taken anew since.
func (s *memoryShard) drop(q *confirmations) (dropped bool) {
	first := q.pop()
	if held := s.keys[first.key]; held.token == 0 && held.until == first.until {
		delete(s.keys, first.key)
		return true
	}
	return false
}

// oldest returns the queue whose head expires first, and nil where all are empty.
func (s *memoryShard) oldest() *confirmations {
	var oldest *confirmations
	for _, q := range s.confirmed {
		if !q.empty() && (oldest == nil || q.head().until < oldest.head().until) {
			oldest = q
		}
	}
	return oldest
}

func (s *memoryShard) queue(retention time.Duration) *confirmations {
	for _, q := range s.confirmed {
		if q.retention == retention {
			return q
		}
	}
	q := &confirmations{retention: retention}
	s.confirmed = append(s.confirmed, q)
	return q
}

// confirmations are keys of one retention in the order in which they expire.
type confirmations struct {
	retention time.Duration
	items     []confirmation
	gone      int // items before it were popped
}

type confirmation struct {
	key   memoryKey
	until int64
}

func (q *confirmations) empty() bool         { return q.gone == len(q.items) }
func (q *confirmations) head() *confirmation { return &q.items[q.gone] }

func (q *confirmations) push(k memoryKey, until int64) {
	if len(q.items) == cap(q.items) && q.gone > len(q.items)/4 {
		n := copy(q.items, q.items[q.gone:])
		clear(q.items[n:])
		q.items, q.gone = q.items[:n], 0
	}
	q.items = append(q.items, confirmation{k, until})
}

func (q *confirmations) pop() confirmation {
	first := q.items[q.gone]
	q.items[q.gone] = confirmation{}
	q.gone++
	if q.empty() {
		q.items, q.gone = q.items[:0], 0
	}
	return first
}
