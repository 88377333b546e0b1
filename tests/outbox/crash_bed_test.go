package outbox_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
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

// seconds are tests that take seconds and stand beside bodies that run every day: some have their turn each day.
var seconds = []string{
	"TestTheFirstKeyAfterMessagesWithoutOneIsInOrder", "TestOrderIsKeptWhereATopicFailsAndOthersDoNot",
	"TestReverseCommitOrder", "TestAHotKeyStarvesNoOther", "TestUniversalSuite", "TestKilledAtEveryBoundary",
	"TestAFormerShardCannotBeTakenAfterwards", "TestThroughPgBouncer",
}

func TestMain(m *testing.M) {
	relayproc.Main()
	testdb.Overlap(8)
	m.Run()
}

// Tests of one kind take turns: one of each runs a day.
var (
	outages = []string{"TestOutagesUnderLoad", "TestTroubleStopsNothingElse"}
	loads   = []string{"TestKilledUnderLoad", "TestProcessesJoinLeaveAndDieUnderLoad"}
	freezes = []string{"TestAFrozenRelaySendsNothingAhead", "TestAFrozenRelayMarksNothingLate", "TestARelayFrozenInAWriteOffStopsNoOther"}
)

// town is an outbox in which business transactions store, of which some are rolled back.
// Its relays are processes, or run beside the test.
type town struct {
	*post
	settings relayproc.Settings // of a relay process
	traffic  *relayproc.Traffic
	refused  map[string]bool // the messages that [town.twice] has refused
	hungUp   *atomic.Int64   // relay processes that have left the broker
}

func newTown(t *testing.T, db *testdb.DB) *town {
	t.Helper()
	o := &town{post: newPost(t, db), refused: map[string]bool{}}
	db.Do(t, relayproc.CreateEffects)
	dsn := db.DSN
	if db.Dialect == "mysql" {
		dsn = db.Open(t, testdb.Params("interpolateParams", "true")).DSN
	}
	o.settings = relayproc.Settings{Driver: db.Driver, DSN: dsn, Lease: 4 * time.Second}
	o.settings.Broker, o.hungUp = relayproc.Broker(t, o.take)
	o.traffic = o.trafficOn(db, "t")
	return o
}

func (o *town) trafficOn(db *testdb.DB, name string) *relayproc.Traffic {
	o.Helper()
	traffic, err := relayproc.NewTraffic(db.DB, name)
	require.NoError(o, err)
	return traffic
}

// take is the broker of relays in other processes.
func (o *town) take(relay, topic string, msg *message.Message) error {
	return (&link{name: relay, to: o.broker}).Publish(topic, msg)
}

// store stores messages of so many keys, in one transaction each; a further one is rolled
// back. Rounds must have growing numbers.
func (o *town) store(keys, round int) {
	o.Helper()
	for key := range keys {
		require.NoError(o, o.traffic.Store(o.Context(), fmt.Sprintf("key %d", key), round, false))
	}
	require.Error(o, o.traffic.Store(o.Context(), "key 0", round, true))
}

// load has workers store messages until it is stopped.
func (o *town) load(traffic *relayproc.Traffic, workers int) (stop func()) {
	ctx, cancel := context.WithCancel(o.Context())
	var done sync.WaitGroup
	done.Go(func() { traffic.Run(ctx, workers) })
	stop = sync.OnceFunc(func() {
		cancel()
		done.Wait()
	})
	o.Cleanup(stop)
	return stop
}

// flows waits until more transactions were committed and messages sent.
func (o *town) flows() {
	o.Helper()
	const n = 30
	stored, sent := o.traffic.Stored.Load(), o.broker.total()
	rig.Eventually(o, "messages flow", func() bool {
		return o.traffic.Stored.Load() >= stored+n && o.broker.total() >= sent+n
	})
}

func (b *memoryBroker) total() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.sent)
}

// effect is a message that a transaction stored and committed.
type effect struct {
	ID  string `db:"id"`
	Key string `db:"order_key"`
	Seq int    `db:"seq"`
}

// check waits until all is sent and written off. Then exactly what was committed has
// reached the broker, as it was stored, and of each key in the order of its storing. It
// returns how many deliveries were duplicates.
func (o *town) check() (duplicates int) {
	o.Helper()
	var effects []effect
	require.NoError(o, o.db.SelectContext(o.Context(), &effects, `SELECT id, order_key, seq FROM effects ORDER BY seq`))
	var ids []string
	known, want := make(map[string]effect), make(map[string][]string)
	for _, e := range effects {
		ids = append(ids, e.ID)
		known[e.ID] = e
		want[e.Key] = append(want[e.Key], e.ID)
	}
	o.broker.awaitAll(o, ids)
	rig.Eventually(o, "the outbox is empty", func() bool { return o.rows() == 0 })
	o.broker.mu.Lock()
	for _, m := range o.broker.sent {
		e, committed := known[m.UUID]
		assert.True(o, committed, "message %s was sent, but never committed", m.UUID)
		assert.Equal(o, strconv.Itoa(e.Seq), string(m.Payload), "payload of %s", m.UUID)
		assert.Equal(o, e.Key, m.Metadata.Get("key"), "metadata of %s", m.UUID)
	}
	duplicates = len(o.broker.sent) - len(ids)
	o.broker.mu.Unlock()
	delete(want, "") // has no order
	o.inOrder(want)
	return duplicates
}

// dies kills a relay process, and returns when the broker has taken what it sent.
func (o *town) dies(p *process.Process) {
	o.Helper()
	before := o.hungUp.Load()
	p.Kill()
	rig.Eventually(o, "the broker has what it sent", func() bool { return o.hungUp.Load() > before })
}

// unwritten counts messages that the broker has and the outbox still holds.
func (o *town) unwritten() (n int) {
	o.Helper()
	var held []string
	require.NoError(o, o.db.SelectContext(o.Context(), &held, `SELECT uuid FROM millrace_outbox`))
	sent := o.broker.deliveries()
	for _, id := range held {
		if sent[id] > 0 {
			n++
		}
	}
	return n
}
