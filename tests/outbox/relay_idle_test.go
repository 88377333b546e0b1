package outbox_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/dialect"
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
	for name, way := range map[string]func(p *post, pool *counted){
		"on its own pool": func(p *post, pool *counted) {
			on := *p.db
			on.DB = pool.DB
			p.db = &on
			p.out = p.publisher()
			p.slow(pool.DB)
		},
		"on another pool, by AfterCommit": func(p *post, pool *counted) {
			relay := p.slow(pool.DB)
			p.out = p.publisher(func(c *outbox.Config) { c.AfterCommit = relay.Wake })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, db *testdb.DB) {
				p, pool := newPost(t, db), newCounted(t, db)
				way(p, pool)
				p.isToldAtOnce(pool)
			})
		})
	}
	t.Run("on another pool, by NOTIFY", func(t *testing.T) {
		t.Parallel()
		p := newPost(t, testdb.On(t, "postgres"))
		pool := newCounted(t, p.db)
		pool.PassNotices()
		p.slow(pool.DB)
		if p.db.Driver == "postgres" { // through database/sql lib/pq passes no notice on: the relay says so, and looks by itself
			rig.Eventually(p, "it says that it hears nothing", func() bool {
				return p.log.has("notices from other processes do not reach this relay")
			})
			return
		}
		p.isToldAtOnce(pool)
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
		pool := newCounted(t, p.db)
		pool.PassNotices()
		p.slow(pool.DB)
		p.isToldAtOnce(pool)
	})
}

// slow starts a relay that looks as rarely as it may.
func (p *post) slow(pool *sqlx.DB) *outbox.Relay {
	p.Helper()
	relay := p.relayOn(pool, p.broker, asItComes, func(c *outbox.RelayConfig) { c.Poll = time.Minute })
	start(p.T, relay)
	p.broker.awaitAll(p, p.send("orders", "", 1))
	return relay
}

// isToldAtOnce sends messages to a relay at rest, which then finds most of them by looks that are no sweeps.
func (p *post) isToldAtOnce(pool *counted) {
	p.Helper()
	look := dialect.For(p.db.Dialect, dialect.Names{Prefix: dialect.DefaultPrefix}).Outbox.SelectPending
	rung := false // the look before the last call
	p.broker.refusing(func(string, *message.Message) error {
		rung = !pool.swept(look)
		return nil
	})
	const tries, enough = 5, 4
	told := 0
	for rounds := 5; rounds > 0 && told < enough; rounds-- { // a sweep may begin before it is told
		told = 0
		for range tries {
			<-time.After(1500 * time.Millisecond) // by then it rests
			p.broker.awaitAll(p, p.send("orders", "", 1))
			p.broker.with(func() {
				if rung {
					told++
				}
			})
		}
	}
	assert.GreaterOrEqual(p, told, enough, "messages that were sent at once, of %d", tries)
}

// swept reports whether the last look was that of a sweep, which begins with another statement.
func (c *counted) swept(look string) (last bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	looks, swept := []string{look, c.Rebind(look)}, false
	for _, call := range c.calls {
		switch {
		case strings.Contains(call, aSweep):
			swept = true
		case slices.Contains(looks, call):
			last, swept = swept, false
		}
	}
	return last
}
