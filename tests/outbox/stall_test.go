package outbox_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// rests waits until this process uses less than half of a processor: what earlier tests left
// to do ends. A relay that spins takes a whole one; two that look now and then take a fifth
// with the race detector, and a quarter where others fill the caches.
func rests(t *testing.T) {
	t.Helper()
	const little, patience = 0.5, 15
	used := 1.0
	for i := 0; i < patience && used >= little; i++ {
		used = cpu(t)
	}
	assert.Less(t, used, little)
}

// cpu is how much of one processor this process used in a second.
func cpu(t *testing.T) float64 {
	t.Helper()
	used := func() time.Duration {
		var u syscall.Rusage
		require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	began, before := time.Now(), used()
	<-time.After(time.Second)
	return float64(used()-before) / float64(time.Since(began))
}

func TestARelayRests(t *testing.T) {
	t.Run("that owns no shard", func(t *testing.T) {
		p := newPost(t, testdb.On(t, "sqlite"))
		for token := range shards {
			p.db.Do(t, fmt.Sprintf(`INSERT INTO millrace_outbox_relays (token, name, started_at, until)
				VALUES (%d, 'other', 0, 9000000000000000)`, token+1))
		}
		p.relay()
		rig.Eventually(p, "the relay is told that it has none", func() bool { return p.log.has("share changed") })
		rests(t)
	})
	t.Run("whose probe is on its way", func(t *testing.T) {
		p := newPost(t, testdb.On(t, "sqlite"))
		calls, hang := make(chan int, 10), make(chan struct{})
		n := 0
		p.broker.refusing(func(string, *message.Message) error {
			n++
			calls <- n
			if n > 1 {
				<-hang
			}
			return errRefused
		})
		p.send("orders", "", 1)
		p.relay()
		for <-calls < 2 {
		}
		rests(t)
		p.broker.refuse = nil // its mutex is held by the probe
		close(hang)
	})
	t.Run("whose database is away", func(t *testing.T) {
		p := newPost(t, testdb.On(t, "sqlite"))
		p.relay(func(c *outbox.RelayConfig) { c.Lease = time.Minute })
		p.broker.awaitAll(t, p.send("orders", "", 1))
		rig.Eventually(p, "the outbox is empty", func() bool { return p.rows() == 0 })
		p.db.Do(t, `ALTER TABLE millrace_outbox RENAME TO away`)
		rig.Eventually(p, "the relay cannot read", func() bool { return p.log.has("cannot read the outbox") })
		rests(t)
		p.db.Do(t, `ALTER TABLE away RENAME TO millrace_outbox`)
		p.broker.awaitAll(t, p.send("orders", "", 1))
	})
}

// has reports whether something was logged that contains text.
func (l *logbook) has(text string) bool {
	return slices.ContainsFunc(l.all(), func(line string) bool { return strings.Contains(line, text) })
}

func TestOrderIsKeptWhereATopicFailsAndOthersDoNot(t *testing.T) {
	testdb.Turn(t, 3, seconds)
	t.Parallel()
	p := newPost(t, testdb.On(t, "sqlite"))
	var all []string
	want := make(map[string][]string)
	for i := range 300 {
		key, topic := fmt.Sprintf("k%d", i%3), fmt.Sprintf("topic-%d", i%2)
		if i%4 == 0 {
			p.send("topic-0", "", 1)
		}
		ids := p.send(topic, key, 1)
		want[key] = append(want[key], ids...)
		all = append(all, ids...)
	}
	calls := 0
	p.broker.refusing(func(topic string, _ *message.Message) error {
		if topic != "topic-0" {
			return nil
		}
		if calls++; calls < 100 {
			return errRefused
		}
		return nil
	})
	var feeding sync.WaitGroup
	defer feeding.Wait()
	fed := make(chan struct{})
	defer close(fed)
	feeding.Go(func() {
		for {
			select {
			case <-fed:
				return
			default:
				p.send("topic-1", "", 1) // else nothing may get through, which is an outage
			}
		}
	})
	p.relay(func(c *outbox.RelayConfig) { c.Batch, c.Lanes = 50, 2; c.MaxAttempts = outbox.Unlimited })
	p.broker.awaitAll(t, all)
	for key, ids := range want {
		assert.Equal(t, ids, p.broker.firsts(key), key)
	}
}

func TestAnotherKeysTroubleWithTheDatabaseReleasesNobody(t *testing.T) {
	t.Parallel()
	p := newPost(t, testdb.On(t, "sqlite"))
	ids := p.send("orders", "k", 3)
	p.db.Do(t, `CREATE TRIGGER stuck BEFORE UPDATE ON millrace_outbox
		BEGIN SELECT RAISE(ABORT, 'stuck'); END`)
	tries := 0
	p.broker.refusing(func(_ string, m *message.Message) error {
		if m.UUID == ids[0] {
			tries++
			return outbox.Permanent(errRefused)
		}
		return nil
	})
	p.relay(func(c *outbox.RelayConfig) { c.MaxAttempts = outbox.Unlimited })
	rig.Eventually(p, "the relay could not write", func() bool { return p.log.has("could not record what it published") })
	<-time.After(2500 * time.Millisecond) // two sweeps
	p.db.Do(t, `DROP TRIGGER stuck`)
	var before int
	p.broker.await(t, "a new try", func([]string) bool { before = tries; return true })
	p.broker.await(t, "more tries", func([]string) bool { return tries >= before+10 })
	assert.Empty(t, p.broker.deliveries())
}

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
			var seen events
			p.relay(seen.observe, func(c *outbox.RelayConfig) {
				c.Batch, c.MinBackoff, c.MaxBackoff = 4, 10*time.Minute, time.Hour
			})
			rig.Eventually(p, "all but what is asked with, and the next of its key, are passed over or held back", func() bool {
				return p.db.Count(t, `SELECT COUNT(*) FROM millrace_outbox WHERE status = 0`) <= 2
			})
			passed := len(seen.of("outage"))
			rig.Eventually(p, "it is probed again, and again", func() bool { return len(seen.of("outage")) >= passed+2 })
			told := seen.of("outage")
			for i, e := range told[1:] {
				assert.Less(t, e.Duration-told[i].Duration, 20*time.Second, "with time for a busy machine")
			}
			p.broker.refusing(nil)
			p.broker.await(t, "the first is sent", func(sent []string) bool { return len(sent) > 0 })
			if key != "" {
				assert.Equal(t, all[0], p.broker.firsts(key)[0])
			}
		})
	}
}
