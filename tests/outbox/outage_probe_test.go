package outbox_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// An outage lasts longer than it takes to pass over the whole backlog, and nothing new is
// stored. It is probed all the same, every five seconds at the latest.
func TestAnOutageIsProbedThoughAllIsPassedOver(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]string{"with a key": "k", "without": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPost(t, testdb.On(t, "sqlite"))
			p.broker.refusing(refuseAll)
			all := p.send("orders", key, 60)
			var seen probes
			p.relay(func(c *outbox.RelayConfig) {
				c.Batch, c.MinBackoff, c.MaxBackoff = 4, 10*time.Minute, time.Hour
				c.Observers = []outbox.Observer{outbox.On(seen.observe, outbox.KindOutage)}
			})
			rig.Eventually(p, "all but what is asked with, and the next of its key, are passed over or held back", func() bool {
				return p.db.Count(t, `SELECT COUNT(*) FROM millrace_outbox WHERE status = 0`) <= 2
			})
			passed, _ := seen.all()
			rig.Eventually(p, "it is probed again, and again", func() bool {
				now, _ := seen.all()
				return now >= passed+2
			})
			_, pause := seen.all()
			assert.Less(t, pause, 20*time.Second, "with time for a busy machine")
			p.broker.refusing(nil)
			p.broker.await(t, "the first is sent", func(sent []string) bool { return len(sent) > 0 })
			if key != "" {
				assert.Equal(t, all[0], p.broker.firsts(key)[0])
			}
		})
	}
}

// probes remembers how often an outage was told of, and the longest pause between.
type probes struct {
	mu    sync.Mutex
	last  time.Time
	count int
	most  time.Duration
}

// observe notes a pause.
func (p *probes) observe(context.Context, outbox.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.count++; p.count > 1 {
		p.most = max(p.most, now.Sub(p.last))
	}
	p.last = now
}

func (p *probes) all() (count int, most time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count, p.most
}
