package tests_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/outbox/relayproc"
	"github.com/millrace-go/millrace/tests/process"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// Relays of the release before, which divides the keys into 12 shards, are replaced under load, and some come
// back. No message is sent by two relays but what one that was killed had sent, and of each key all go out in order.
func TestRollingUpgradeOfRelays(t *testing.T) {
	testdb.Turn(t, 1, upgrades)
	t.Parallel()
	before := releases(t).relay
	testdb.Some(t, 1, func(t *testing.T, db *testdb.DB) {
		s := newShift(t, db, before)
		stop := s.load()
		s.startOld("old a")
		s.startOld("old b")
		s.have("old a", "old b")
		s.startNew("new a")
		s.startNew("new b")
		s.flows()
		assert.Zero(t, s.by("new a")+s.by("new b"), "sent beside relays of the release before")
		assert.Equal(t, 12, s.shards())
		s.relays["old a"].Close()
		s.have("old b")
		s.relays["old b"].Kill()

		s.have("new a", "new b")
		s.flows()
		s.startOld("old c")
		s.have("new a", "new b", "old c")
		s.flows()
		s.relays["new a"].Kill()
		s.have("new b", "old c")
		s.relays["new b"].Close()
		s.have("old c")
		s.flows()
		s.startNew("new c")
		s.have("old c", "new c")
		assert.Positive(t, s.by("old c"))
		s.relays["old c"].Close()
		s.have("new c")
		s.flows()
		stop()
		s.check("old b", "new a")
	})
}

// shift is an outbox whose relays are replaced.
type shift struct {
	*testing.T
	db       *testdb.DB
	before   string // program of the release before
	settings relayproc.Settings
	relays   map[string]*process.Process
	traffic  *relayproc.Traffic

	mu   sync.Mutex
	sent []*message.Message // with the relay in their metadata
}

func newShift(t *testing.T, db *testdb.DB, before string) *shift {
	t.Helper()
	db.Do(t, relayproc.CreateEffects)
	dsn := db.DSN
	if db.Dialect == "mysql" { // so that the greatest shard is tried as text, too
		dsn = db.Open(t, testdb.Params("interpolateParams", "true")).DSN
	}
	s := &shift{T: t, db: db, before: before, relays: map[string]*process.Process{}}
	s.settings = relayproc.Settings{Driver: db.Driver, DSN: dsn, Lease: 15 * time.Second} // who loses it on a busy machine sends twice, too
	s.settings.Broker, _ = relayproc.Broker(t, s.take)
	var err error
	s.traffic, err = relayproc.NewTraffic(db.DB, "t")
	require.NoError(t, err)
	if db.Dialect == "sqlite" { // its writers wait for each other, without an order
		s.traffic.Pause *= 5
	}
	return s
}

func (s *shift) take(relay, _ string, msg *message.Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	msg.Metadata.Set("relay", relay)
	s.sent = append(s.sent, msg)
	return nil
}

func (s *shift) startOld(name string) {
	s.Helper()
	own := s.settings
	own.Name = name
	s.relays[name] = relayproc.StartProgram(s, s.before, struct {
		relayproc.Settings
		Shards int
	}{own, 12})
}

func (s *shift) startNew(name string) {
	s.Helper()
	own := s.settings
	own.Name = name
	s.relays[name] = relayproc.Start(s, own)
}

// load has transactions store messages on 64 keys until it is stopped.
func (s *shift) load() (stop func()) {
	ended := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		tick := time.NewTicker(s.traffic.Pause / time.Duration(testdb.Rounds(1, 4)))
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-ended:
				return
			case <-tick.C:
			}
			assert.NoError(s, s.traffic.Store(context.WithoutCancel(s.Context()), fmt.Sprintf("key %d", n%64), n, false))
		}
	})
	stop = sync.OnceFunc(func() { close(ended); all.Wait() })
	s.Cleanup(stop)
	return stop
}

func (s *shift) shards() int {
	s.Helper()
	return s.db.Count(s, `SELECT COALESCE(MAX(shards), 0) FROM millrace_outbox_layout`)
}

// have waits until the relays have a fair share of all shards each.
func (s *shift) have(names ...string) {
	s.Helper()
	rig.Eventually(s, fmt.Sprint("all shards are shared by ", names), func() bool {
		shards, sum := s.shards(), 0
		for _, name := range names {
			n := s.db.Count(s, `SELECT COUNT(*) FROM millrace_outbox_shards s
				JOIN millrace_outbox_layout l ON l.generation = s.generation
				JOIN millrace_outbox_relays r ON r.token = s.owner WHERE r.name = ?`, name)
			if n < shards/len(names) {
				return false
			}
			sum += n
		}
		return sum == shards && sum > 0
	})
}

// flows waits until a message of each of many keys was sent.
func (s *shift) flows() {
	s.Helper()
	least := s.total() + testdb.Rounds(100, 400)
	rig.Eventually(s, "messages flow", func() bool { return s.total() >= least })
}

func (s *shift) total() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.sent)
}

func (s *shift) by(relay string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.sent {
		if m.Metadata.Get("relay") == relay {
			n++
		}
	}
	return n
}

// check waits until everything is sent. Another relay may send again only what one had sent that was killed, or
// whose log says that it lost its lease, for want of a processor.
func (s *shift) check(killed ...string) {
	s.Helper()
	rig.Eventually(s, "the outbox is empty", func() bool { return s.db.Count(s, `SELECT COUNT(*) FROM millrace_outbox`) == 0 })
	for name, p := range s.relays {
		p.Kill()
		if lost := regexp.MustCompile(`the lease was lost|did not extend its lease in time and lost it`); lost.MatchString(p.Said()) {
			killed = append(killed, name)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	senders, last := map[string]string{}, map[string]int{}
	for _, m := range s.sent {
		first, again := senders[m.UUID]
		if again {
			assert.Contains(s, killed, first, "%s was sent by %s and %s", m.UUID, first, m.Metadata.Get("relay"))
			continue
		}
		senders[m.UUID] = m.Metadata.Get("relay")
		key := m.Metadata.Get("key")
		seq, err := strconv.Atoi(string(m.Payload))
		require.NoError(s, err)
		if key != "" {
			assert.GreaterOrEqual(s, seq, last[key], "what went out of %s before it", key)
			last[key] = seq
		}
	}
	assert.Len(s, senders, s.db.Count(s, `SELECT COUNT(*) FROM effects`), "everything that was committed")
	for name := range s.relays {
		assert.True(s, slices.Contains([]string{"old a"}, name) || slices.ContainsFunc(s.sent, func(m *message.Message) bool {
			return m.Metadata.Get("relay") == name
		}), "%s sent nothing", name)
	}
	s.Logf("%d messages, %d sent again", len(senders), len(s.sent)-len(senders))
}
