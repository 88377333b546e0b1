package outbox_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/testdb"
)

// counted is a pool that counts statements by a part of their text.
type counted struct {
	*faults.Faults
	mu      sync.Mutex
	changed *sync.Cond
	calls   []string
}

func newCounted(t *testing.T, db *testdb.DB) *counted {
	t.Helper()
	c := &counted{Faults: faults.Open(t, db)}
	c.changed = sync.NewCond(&c.mu)
	c.Set(faults.Plan{Before: func(_ context.Context, call string) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.calls = append(c.calls, call)
		c.changed.Broadcast()
		return nil
	}})
	return c
}

func (c *counted) of(part string) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.countLocked(part)
}

func (c *counted) countLocked(part string) (n int) {
	for _, call := range c.calls {
		if strings.Contains(call, part) {
			n++
		}
	}
	return n
}

// await waits for so many statements with the part.
func (c *counted) await(t *testing.T, part string, n int) {
	t.Helper()
	late := time.AfterFunc(time.Minute, c.changed.Broadcast)
	defer late.Stop()
	began := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.countLocked(part) < n {
		if time.Since(began) > 59*time.Second {
			require.FailNow(t, "never: statements with "+part)
		}
		c.changed.Wait()
	}
}

// What the statements of a relay have in them that no others have.
const (
	aBeat  = "SET until ="
	aSweep = "MIN(due_at)"
	aLook  = "AND due_at = 0 AND id >"
)

func TestAnIdleRelayRests(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "sqlite")
	p := newPost(t, db)
	pool := newCounted(t, db)
	relay, err := outbox.NewRelay(pool.DB, p.broker, outbox.RelayConfig{Logger: p.log})
	require.NoError(t, err)
	start(t, relay)
	p.broker.awaitAll(t, p.send("orders", "", 1))
	pool.await(t, aSweep, 2)

	began, sweeps := time.Now(), pool.of(aSweep)
	beats, looks := pool.of(aBeat), pool.of(aLook)
	pool.await(t, aSweep, sweeps+3)
	took := int(time.Since(began) / time.Second)
	assert.LessOrEqual(t, pool.of(aBeat)-beats, took/5+2, "a beat for each third of a lease")
	assert.LessOrEqual(t, pool.of(aLook)-looks, 3*took+10, "a look for each pause, which grow to a second")
}
