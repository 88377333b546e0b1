package lease

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/steady"
)

// MemoryConfig is how much [NewMemory] remembers. The zero value is right for
// most services.
type MemoryConfig struct {
	// Limit bounds the keys that are remembered. Defaults to 250,000, which take some 40 MB
	// once there were so many; a service with 100 messages a second then remembers each for
	// at least 40 minutes.
	Limit int

	// Logger hears what a person must know. Defaults to none.
	Logger watermill.LoggerAdapter

	// Observers are told of decisions: see [inbox.LeasesConfig].
	Observers []inbox.Observer
}

// NewMemory returns leases kept in the memory of this process: it alone knows them,
// and forgets them when it ends. They start no goroutine.
//
// When Limit is reached, the confirmed key whose retention ends first is forgotten, which
// is logged once and told as [inbox.KindEvicted]: a copy of its message that comes later
// than some Limit others is handled again. Refusing messages instead would stop the
// consumer until retentions end, to prevent what a restart of the process does anyway. A
// key in flight is never forgotten; where those alone reach Limit, messages are refused.
func NewMemory(config MemoryConfig) (*inbox.Leases, error) {
	if config.Limit < 0 {
		return nil, fmt.Errorf("lease: invalid MemoryConfig: Limit %d is negative", config.Limit)
	}
	if config.Limit == 0 {
		config.Limit = 250_000
	}
	if config.Logger == nil {
		config.Logger = watermill.NopLogger{}
	}
	m := &memory{
		born:    time.Now(),
		limit:   config.Limit,
		log:     steady.Logger(config.Logger, nil),
		keys:    make(map[memoryKey]held),
		numbers: make(map[consumer]uint32),
	}
	for _, o := range config.Observers {
		if few, is := o.(inbox.SelectiveObserver); o != nil && (!is || few.Wants(inbox.KindEvicted)) {
			m.observers = append(m.observers, o)
		}
	}
	return inbox.NewLeases(m, inbox.LeasesConfig{Logger: config.Logger, Observers: config.Observers}), nil
}

// memory is an [inbox.LeaseStore]. Its times are nanoseconds since it was born, by the
// clock that nobody can set.
type memory struct {
	born      time.Time
	limit     int
	log       watermill.LoggerAdapter
	observers []inbox.Observer
	warned    sync.Once

	mu        sync.Mutex
	keys      map[memoryKey]held
	confirmed []*confirmations // one for each retention
	numbers   map[consumer]uint32
}

// consumer names a consumer, one epoch of it.
type consumer struct {
	name  string
	epoch int
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

type held struct {
	token int64 // 0: confirmed
	until int64
}

func (m *memory) now() int64 { return int64(time.Since(m.born)) }

func (m *memory) Acquire(ctx context.Context, key inbox.LeaseKey, token int64, lease time.Duration) (inbox.LeaseState, error) {
	now := m.now()
	m.mu.Lock()
	k := m.key(key)
	has, known := m.keys[k]
	if known && has.until > now {
		m.mu.Unlock()
		state := inbox.LeaseState{Status: inbox.LeaseHeld, Remaining: time.Duration(has.until - now)}
		if has.token == 0 {
			state.Status = inbox.LeaseConfirmed
		}
		return state, nil
	}
	room, evicted := true, 0
	if !known {
		room, evicted = m.makeRoom(now)
	}
	if room {
		m.keys[k] = held{token: token, until: now + int64(lease)}
	}
	m.mu.Unlock()
	if evicted > 0 {
		m.observeEvicted(ctx, evicted)
	}
	if !room {
		return inbox.LeaseState{}, errMemoryFull
	}
	return inbox.LeaseState{Status: inbox.LeaseTaken, Remaining: lease}, nil
}

var (
	errMemoryFull = errors.New("as many messages are in flight as MemoryConfig.Limit allows: raise it")
	errEvicted    = errors.New("copies of their messages are handled again: raise MemoryConfig.Limit, " +
		"or shorten Retention to what is really remembered")
)

func (m *memory) Confirm(_ context.Context, key inbox.LeaseKey, token int64, retention time.Duration) error {
	until := m.now() + int64(retention)
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.key(key)
	if m.keys[k].token != token {
		return inbox.ErrLeaseLost
	}
	m.keys[k] = held{until: until}
	m.queue(retention).push(k, until)
	return nil
}

func (m *memory) Release(_ context.Context, key inbox.LeaseKey, token int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if k := m.key(key); m.keys[k].token == token {
		delete(m.keys, k)
	}
	return nil
}

func (m *memory) Extend(_ context.Context, key inbox.LeaseKey, token int64, lease time.Duration) error {
	until := m.now() + int64(lease)
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.key(key)
	if m.keys[k].token != token {
		return inbox.ErrLeaseLost
	}
	m.keys[k] = held{token: token, until: until}
	return nil
}

// key returns the key in its form. The caller holds the lock.
func (m *memory) key(key inbox.LeaseKey) memoryKey {
	of := consumer{key.Consumer, key.Epoch}
	number, known := m.numbers[of]
	if !known {
		number = uint32(len(m.numbers)) //nolint:gosec // consumers are few
		m.numbers[of] = number
	}
	return newMemoryKey(number, key.ID)
}

func (m *memory) observeEvicted(ctx context.Context, n int) {
	m.warned.Do(func() {
		m.log.Error("inbox: keys were forgotten before their retention was over; said once", errEvicted, nil)
	})
	for _, o := range m.observers {
		o.Observe(ctx, inbox.Event{Kind: inbox.KindEvicted, Reason: "memory full", Count: n})
	}
}

// makeRoom lets one more key in, if it can, and counts the keys that were forgotten before
// their time. It drops a few expired ones whenever it is called, so that none stay for long.
func (m *memory) makeRoom(now int64) (room bool, evicted int) {
	const few = 4
	for range few {
		if q := m.oldest(); q == nil || q.head().until > now {
			break
		} else {
			m.drop(q)
		}
	}
	for len(m.keys) >= m.limit {
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

// sweep removes leases that ended and that nobody gave back, and reports whether there is
// room now. It is slow, and called only where all keys are in flight.
func (m *memory) sweep(now int64) (room bool) {
	for k, has := range m.keys {
		if has.until <= now {
			delete(m.keys, k)
		}
	}
	return len(m.keys) < m.limit
}

// drop forgets the key that was confirmed first in q, unless it was taken anew since.
func (m *memory) drop(q *confirmations) (dropped bool) {
	first := q.pop()
	if has := m.keys[first.key]; has.token == 0 && has.until == first.until {
		delete(m.keys, first.key)
		return true
	}
	return false
}

// oldest returns the queue whose head expires first, and nil where all are empty.
func (m *memory) oldest() *confirmations {
	var oldest *confirmations
	for _, q := range m.confirmed {
		if !q.empty() && (oldest == nil || q.head().until < oldest.head().until) {
			oldest = q
		}
	}
	return oldest
}

func (m *memory) queue(retention time.Duration) *confirmations {
	for _, q := range m.confirmed {
		if q.retention == retention {
			return q
		}
	}
	q := &confirmations{retention: retention}
	m.confirmed = append(m.confirmed, q)
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
