// Package recent remembers a bounded number of recent keys.
package recent

import (
	"sync"
	"time"
)

// Set remembers keys, with a hash for each, bounded in number and time. It drops old keys by the
// generation, so an entry needs neither a timer nor a list.
type Set struct {
	limit int // per generation
	ttl   time.Duration

	mu       sync.RWMutex
	born     time.Time
	current  map[string]int64
	previous map[string]int64
}

// NewSet returns a Set. It remembers a key for at least half of ttl and at most one and a half
// times ttl, unless more than half of limit other keys came since.
func NewSet(limit int, ttl time.Duration) *Set {
	return &Set{limit: max(limit/2, 1), ttl: ttl / 2, born: time.Now(), current: map[string]int64{}}
}

// Add remembers key.
func (s *Set) Add(key string, hash int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rotate(len(s.current) >= s.limit)
	s.current[key] = hash
}

// Raise remembers key with number, unless it is remembered with a greater one.
func (s *Set) Raise(key string, number int64) {
	if known, is := s.Get(key); is && known >= number {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if known, is := s.get(key); is && known >= number { // it was raised meanwhile
		return
	}
	s.rotate(len(s.current) >= s.limit)
	s.current[key] = number
}

// Get returns the hash of key, and whether key is remembered.
func (s *Set) Get(key string) (hash int64, known bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.get(key)
}

func (s *Set) get(key string) (hash int64, known bool) {
	if hash, known = s.current[key]; known {
		return hash, time.Since(s.born) < 2*s.ttl
	}
	hash, known = s.previous[key]
	return hash, known && time.Since(s.born) < s.ttl
}

// Forget drops everything.
func (s *Set) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current, s.previous, s.born = map[string]int64{}, nil, time.Now()
}

func (s *Set) rotate(full bool) {
	switch age := time.Since(s.born); {
	case age >= 2*s.ttl:
		s.previous = nil
	case age >= s.ttl, full:
		s.previous = s.current
	default:
		return
	}
	s.current, s.born = make(map[string]int64, len(s.current)), time.Now()
}
