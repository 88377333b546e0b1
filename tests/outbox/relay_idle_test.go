package outbox_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// counted is a pool that counts statements by a part of their text.
type counted struct {
	*faults.Faults
	*watched
	calls []string
}

func newCounted(t *testing.T, db *testdb.DB) *counted {
	t.Helper()
	c := &counted{Faults: faults.Open(t, db), watched: newWatched()}
	c.Set(faults.Plan{Before: func(_ context.Context, call string) error {
		c.with(func() { c.calls = append(c.calls, call) })
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
	c.until(t, "statements with "+part, func() bool { return c.countLocked(part) >= n })
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
	start(t, p.relayOn(pool.DB, p.broker, asItComes))
	p.broker.awaitAll(t, p.send("orders", "", 1))
	pool.await(t, aSweep, 2)

	began, sweeps := time.Now(), pool.of(aSweep)
	beats, looks := pool.of(aBeat), pool.of(aLook)
	pool.await(t, aSweep, sweeps+3)
	took := int(time.Since(began) / time.Second)
	assert.LessOrEqual(t, pool.of(aBeat)-beats, took/5+2, "a beat for each third of a lease")
	assert.LessOrEqual(t, pool.of(aLook)-looks, 3*took+10, "a look for each pause, which grow to a second")
}

// A relay that rests looks for messages once a second. It is told of each commit in its
// process, by NOTIFY of those in others, and by Wake of whatever the service knows. Other
// tests would take the processor from it.
func TestARelayIsToldOfCommits(t *testing.T) {
	for name, way := range map[string]func(p *post){
		"on its own pool": func(p *post) { p.slow(p.db) },
		"on another pool, by AfterCommit": func(p *post) {
			relay := p.slow(p.db.Open(p))
			p.out = p.publisher(func(c *outbox.Config) { c.AfterCommit = relay.Wake })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, db *testdb.DB) {
				p := newPost(t, db)
				way(p)
				p.isToldAtOnce()
			})
		})
	}
	t.Run("on another pool, by NOTIFY", func(t *testing.T) {
		t.Parallel()
		p := newPost(t, testdb.On(t, "postgres"))
		p.slow(p.db.Open(t))
		if p.db.Driver == "postgres" { // through database/sql lib/pq passes no notice on: the relay says so, and looks by itself
			rig.Eventually(p, "it says that it hears nothing", func() bool {
				return p.log.has("notices from other processes do not reach this relay")
			})
			return
		}
		p.isToldAtOnce()
	})
	t.Run("on another pool, by NOTIFY, beside the relay of another outbox", func(t *testing.T) {
		t.Parallel()
		p := newPost(t, testdb.On(t, "postgres"))
		if p.db.Driver == "postgres" {
			t.Skip("through database/sql lib/pq passes no notice on")
		}
		const beside = "beside_"
		require.NoError(t, rig.NewOutbox(t, p.db.DB, outbox.Config{TablePrefix: beside}).Migrate(t.Context()))
		start(t, p.relayOn(p.db.DB, newMemoryBroker(), asItComes, func(c *outbox.RelayConfig) { c.TablePrefix = beside }))
		p.slow(p.db.Open(t))
		p.isToldAtOnce()
	})
}

// slow starts a relay that looks as rarely as it may.
func (p *post) slow(db *testdb.DB) *outbox.Relay {
	p.Helper()
	relay := p.relayOn(db.DB, p.broker, asItComes, func(c *outbox.RelayConfig) { c.Poll = time.Minute })
	start(p.T, relay)
	p.broker.awaitAll(p, p.send("orders", "", 1))
	return relay
}

// isToldAtOnce sends messages to a relay at rest. That it looked by chance within so short a
// time after most of them is unlikely.
func (p *post) isToldAtOnce() {
	p.Helper()
	const tries, enough, soon = 5, 4, 200 * time.Millisecond
	told := 0
	for rounds := 3; rounds > 0 && told < enough; rounds-- { // on a busy machine what is told at once may come later
		told = 0
		for range tries {
			<-time.After(1500 * time.Millisecond) // by then it rests
			ids := p.send("orders", "", 1)
			committed := time.Now()
			p.broker.awaitAll(p, ids)
			if time.Since(committed) < soon {
				told++
			}
		}
	}
	assert.GreaterOrEqual(p, told, enough, "messages that were sent at once, of %d", tries)
}
