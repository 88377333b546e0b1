package chaos_test

import (
	"math/rand/v2"
	"sync"
	"time"
)

// fault is one thing that a monkey does to a target. What it returns mends the target.
type fault struct {
	name     string
	target   string
	shortest time.Duration // until it is mended
	longest  time.Duration
	do       func() (mend func())
}

// monkey does one fault after the other, in an order that its seed gives. Faults of
// different targets overlap; a target has one at a time.
type monkey struct {
	random *rand.Rand
	faults []fault
	pause  time.Duration // between two faults, on average
	done   map[string]int

	hurting sync.WaitGroup
	mu      sync.Mutex
	hurt    map[string]bool // targets
}

func newMonkey(seed uint64, faults []fault, pause time.Duration) *monkey {
	return &monkey{
		random: rand.New(rand.NewPCG(seed, 0)), faults: faults, pause: pause,
		done: map[string]int{}, hurt: map[string]bool{},
	}
}

// rage does faults for a time, and returns when all is mended. It calls watch between them.
func (m *monkey) rage(lasts time.Duration, watch func()) {
	enough := make(chan struct{})
	time.AfterFunc(lasts, func() { close(enough) })
	for {
		watch()
		f := m.faults[m.random.IntN(len(m.faults))]
		m.strike(f, m.between(f.shortest, f.longest), enough)
		select {
		case <-time.After(m.between(m.pause/2, m.pause*3/2)):
		case <-enough:
			m.hurting.Wait()
			return
		}
	}
}

// strike does a fault, unless its target has one.
func (m *monkey) strike(f fault, lasts time.Duration, enough <-chan struct{}) {
	if !m.take(f.target) {
		return
	}
	m.done[f.name]++
	m.hurting.Go(func() {
		defer m.leave(f.target)
		mend := f.do()
		defer mend()
		select {
		case <-time.After(lasts):
		case <-enough:
		}
	})
}

// take keeps the monkey from a target.
func (m *monkey) take(target string) (taken bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	taken = !m.hurt[target]
	m.hurt[target] = true
	return taken
}

func (m *monkey) leave(target string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.hurt, target)
}

func (m *monkey) between(least, most time.Duration) time.Duration {
	return least + time.Duration(m.random.Int64N(int64(most-least)+1))
}
