// Package turns makes copies of one message wait for each other in memory.
package turns

import (
	"context"
	"sync"
)

// Turns gives out one turn per key at a time, in the order of the calls. The zero value is ready to
// use.
type Turns struct {
	mu   sync.Mutex
	keys map[string]*queue
}

type queue struct {
	users   int           // the holder of the turn and all that wait
	turn    chan struct{} // has a token while the turn is free
	settled bool          // the last holder settled the key …
	hash    int64         // … for messages with this hash
}

// Turn is the right to work on a key.
type Turn struct {
	turns *Turns
	key   string
	queue *queue
}

// Try takes the turn on key if it is free.
func (t *Turns) Try(key string) (turn Turn, taken bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.keys[key] != nil {
		return Turn{}, false
	}
	return t.first(key), true
}

// first creates the queue of a key. The caller holds the lock.
func (t *Turns) first(key string) Turn {
	if t.keys == nil {
		t.keys = make(map[string]*queue)
	}
	q := &queue{users: 1}
	t.keys[key] = q
	return Turn{t, key, q}
}

// Take waits for the turn on key. It returns settled, and no turn, if the holder before settled the
// key for messages with this hash.
func (t *Turns) Take(ctx context.Context, key string, hash int64) (turn Turn, settled bool, err error) {
	t.mu.Lock()
	q, waiting := t.keys[key]
	if !waiting {
		turn = t.first(key)
		t.mu.Unlock()
		return turn, false, nil
	}
	q.users++
	if q.turn == nil {
		q.turn = make(chan struct{}, 1)
	}
	t.mu.Unlock()

	turn = Turn{t, key, q}
	select {
	case <-q.turn:
	case <-ctx.Done():
		turn.leave()
		return Turn{}, false, ctx.Err()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	settled = q.settled && q.hash == hash
	if settled {
		turn.pass()
		return Turn{}, true, nil
	}
	return turn, false, nil
}

// Fail passes the turn to the next copy.
func (t Turn) Fail() {
	t.turns.mu.Lock()
	defer t.turns.mu.Unlock()
	t.queue.settled = false
	t.pass()
}

// Settle ends the wait of the copies with the same hash, and passes the turn to a copy with another
// one.
func (t Turn) Settle(hash int64) {
	t.turns.mu.Lock()
	defer t.turns.mu.Unlock()
	t.queue.settled, t.queue.hash = true, hash
	t.pass()
}

// pass passes the turn on. The caller holds the lock.
func (t Turn) pass() {
	t.drop()
	if t.queue.users > 0 {
		t.queue.turn <- struct{}{} // never blocks: the caller took the token
	}
}

// leave gives up waiting.
func (t Turn) leave() {
	t.turns.mu.Lock()
	defer t.turns.mu.Unlock()
	t.drop()
}

func (t Turn) drop() {
	t.queue.users--
	if t.queue.users == 0 {
		delete(t.turns.keys, t.key)
	}
}
