package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// hoard stores n messages of the key "hot", of which there are no statistics. Their UUIDs are 1 to n,
// in the order of their storing.
func (p *post) hoard(n, status int) {
	p.Helper()
	first := p.send("orders", "hot", 1)[0]
	p.db.Do(p, `UPDATE millrace_outbox SET uuid = '1' WHERE uuid = '`+first+`'`)
	if status == rowHeld {
		p.db.Do(p, `UPDATE millrace_outbox SET status = 2, blocked_key = key_hash`)
	}
	if p.db.Dialect == "postgres" {
		p.db.Do(p, `ALTER TABLE millrace_outbox SET (autovacuum_enabled = off)`)
	}
	uuid := map[string]string{"postgres": "i::TEXT", "mysql": "CAST(i AS CHAR)", "sqlite": "CAST(i AS TEXT)"}[p.db.Dialect]
	p.db.Do(p, `
		INSERT INTO millrace_outbox (key_hash, blocked_key, status, created_at, topic, uuid, order_key, metadata)
		SELECT key_hash, blocked_key, status, created_at, topic, `+uuid+`, order_key, metadata
		FROM millrace_outbox CROSS JOIN `+p.db.Numbers(n)+` WHERE uuid = '1' AND i > 1`)
}

// slowly has a broker take its time for the messages of the hot key.
func slowly(_ string, m *message.Message) error {
	if m.Metadata.Get("key") == "hot" {
		<-time.After(5 * time.Millisecond)
	}
	return nil
}

// sentHot is how many messages of the hot key were sent, and whether in order and once.
func (p *post) sentHot() int {
	p.Helper()
	ids := p.broker.firsts("hot")
	for i, id := range ids {
		if id != fmt.Sprint(i+1) {
			p.Fatalf("the message number %d of the hot key is %s", i+1, id)
		}
	}
	return len(ids)
}

// others stores messages of other keys, and of none, and waits for them to be sent. It returns how many messages of the hot
// key went out while it waited.
func (p *post) others() (hot int) {
	p.Helper()
	var all []string
	for i := range 10 {
		all = append(all, p.send("orders", fmt.Sprint("other", i), 2)...)
	}
	all = append(all, p.send("orders", "", 10)...)
	before := p.sentHot()
	p.broker.awaitAll(p, all)
	return p.sentHot() - before
}

// small has a relay with little in hand, so that few messages are many.
func small(c *outbox.RelayConfig) { c.Batch = 50 }

// TestAHotKeyStarvesNoOther: its messages go out one by one, and there are more of it than a relay has in hand.
func TestAHotKeyStarvesNoOther(t *testing.T) {
	testdb.Turn(t, 3, seconds)
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		p := newPost(t, db)
		const n = 3000
		p.hoard(n, rowPending)
		p.broker.refusing(slowly)
		p.relay(small)
		assert.Less(t, p.others(), n/2, "the others waited for the hot key")
		p.broker.refusing(nil)
		rig.Eventually(t, "the hot key is sent", func() bool { return p.sentHot() == n })
		rig.Eventually(t, "the outbox is empty", func() bool { return p.rows() == 0 })
		assert.Len(t, p.broker.deliveries(), n+30)
	})
}

// TestWhatIsHeldBackGoesOutFromWhereItIs: to release all of it in one statement takes longer than any
// statement may, from some million messages on; and then nothing can be written off.
func TestWhatIsHeldBackGoesOutFromWhereItIs(t *testing.T) {
	t.Parallel()
	n := testdb.Rounds(1000, 2_000_000)
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		p := newPost(t, db)
		p.hoard(n, rowHeld)
		p.broker.refusing(slowly)
		relay := p.relay(small)
		p.others()
		rig.Eventually(t, "the hot key is being sent", func() bool { return p.sentHot() >= 100 })
		assert.Zero(t, p.db.Count(t, `SELECT COUNT(*) FROM millrace_outbox WHERE status = 0 AND order_key = 'hot'`), "all of it was released")

		// What is stored meanwhile goes last, and who comes next goes on.
		ids := p.send("orders", "hot", 3)
		require.NoError(t, relay.stop())
		p.relay(small)
		p.others()
		if testdb.Long() {
			return
		}
		p.broker.refusing(nil)
		p.broker.awaitAll(t, ids)
		assert.Equal(t, ids, p.broker.firsts("hot")[n:])
		rig.Eventually(t, "the outbox is empty", func() bool { return p.rows() == 0 })
	})
}

// TestARelayReadsThoughItCannotTellWhichKeysWait: and it says so, and does so later.
func TestARelayReadsThoughItCannotTellWhichKeysWait(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		p := newPost(t, db)
		p.hoard(10, rowHeld)
		pool := faults.Open(t, db)
		asks := dialect.For(db.Dialect, dialect.Names{Prefix: dialect.DefaultPrefix}).Outbox.ListKeys
		pool.Set(faults.Plan{Before: func(_ context.Context, call string) error {
			if call == asks || pool.Rebind(asks) == call {
				return errors.New("it takes too long")
			}
			return nil
		}})
		start(t, p.relayOn(pool.DB, p.broker, asItComes))
		p.others()
		assert.Zero(t, p.sentHot())
		assert.Contains(t, strings.Join(p.log.all(), "\n"), "it takes too long")
		pool.Set(faults.Plan{})
		rig.Eventually(t, "what waited in vain is sent", func() bool { return p.sentHot() == 10 })
	})
}
