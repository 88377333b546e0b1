package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/outbox/relayproc"
	"github.com/millrace-go/millrace/tests/process"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// Relays in processes of their own join, leave and die under load. Each has its fair share
// of the shards, and no message is sent by two of them but what a relay that died had sent.
// One that lost its lease to a busy machine may send its own again.
func TestProcessesJoinLeaveAndDieUnderLoad(t *testing.T) {
	testdb.Turn(t, 1, loads)
	t.Parallel()
	testdb.Some(t, 1, testdb.With(newTown, func(t *testing.T, o *town) {
		o.settings.Lease = 15 * time.Second
		if o.db.Dialect == "sqlite" { // its writers wait for each other, without an order
			o.traffic.Pause *= 5
		}
		relays := map[string]*process.Process{}
		join := func(name string) {
			s := o.settings
			s.Name = name
			if name == "b" { // which will die
				s.Lease = 4 * time.Second
			}
			relays[name] = relayproc.Start(t, s)
		}
		stop := o.load(o.traffic, 2)
		for _, name := range []string{"a", "b", "c"} {
			join(name)
		}
		o.fair(relays)
		o.flows()
		join("joins")
		o.fair(relays)
		o.flows()
		relays["a"].Close()
		delete(relays, "a")
		o.fair(relays)
		o.flows()
		relays["b"].Kill()
		delete(relays, "b")
		o.fair(relays)
		o.flows()
		stop()
		o.check()
		for id, by := range o.broker.senders() {
			assert.True(t, len(slices.Compact(slices.Sorted(slices.Values(by)))) == 1 || slices.Contains(by, "b"), "message %s was sent by %v", id, by)
		}
		for _, p := range relays {
			p.Close()
		}
	}))
}

// fair waits until the relays share all shards fairly, by the tables and by what they were
// told.
func (o *town) fair(relays map[string]*process.Process) {
	o.Helper()
	rig.Eventually(o, fmt.Sprintf("%d shards are shared fairly by %d", shards, len(relays)), func() bool {
		owners, sum := o.owners(), 0
		for name, p := range relays {
			n := owners[name]
			sum += n
			told := p.Events(relayproc.Share)
			if n < shards/len(relays) || n > (shards-1)/len(relays)+1 || len(told) == 0 {
				return false
			}
			if told[len(told)-1].Counts["shards"] != n {
				return false
			}
		}
		return sum == shards
	})
}

// team is three relay processes, of which the first stops at a point.
type team struct {
	*town
	frozen *process.Process
	others []*process.Process
}

func newTeam(t *town, stop relayproc.Point) *team {
	t.Helper()
	t.settings.Lease = 12 * time.Second
	s := t.settings
	s.Lanes = 1 // so that one call at most is under way
	s.Name, s.Stop, s.Unaware = "frozen", stop, stop == relayproc.MidPublish
	m := &team{town: t, frozen: relayproc.Start(t, s)}
	s.Stop, s.Unaware = "", false
	for n := range 2 {
		s.Name = fmt.Sprintf("other %d", n)
		m.others = append(m.others, relayproc.Start(t, s))
	}
	rig.Eventually(m, "all have a share", func() bool {
		o := m.owners()
		return o["frozen"] >= 2 && o["other 0"] >= 2 && o["other 1"] >= 2
	})
	return m
}

// freeze freezes the first relay where it stops, until the others have its shards.
func (m *team) freeze() process.Event {
	m.Helper()
	at := m.frozen.Await(process.At, 1)[0]
	// On SQLite nobody could write if it were frozen in a write.
	require.NoError(m, outbox.InTx(m.Context(), m.db.DB, func(context.Context, *sqlx.Tx) error {
		m.frozen.Freeze()
		return nil
	}))
	rig.Eventually(m, "the others have all shards", func() bool {
		o := m.owners()
		return o["other 0"]+o["other 1"] == shards
	})
	return at
}

// thaw lets it go on, until it has begun anew.
func (m *team) thaw() {
	m.Helper()
	m.frozen.Thaw()
	m.frozen.GoOn()
	rig.Eventually(m, "it has a share again", func() bool { return m.owners()["frozen"] >= 2 })
}

func (m *team) close() {
	m.Helper()
	for _, p := range append(m.others, m.frozen) {
		p.Close()
	}
}

// Three relays share an outbox. One freezes in the middle of a publish call, for longer than
// its lease; the others send what it had in hand. Thawed, it ends the call that it was in,
// and sends nothing else of what it had, though the database has not told it yet that the lease is over.
func TestAFrozenRelaySendsNothingAhead(t *testing.T) {
	testdb.Turn(t, 1, freezes)
	t.Parallel()
	testdb.Some(t, 1, func(t *testing.T, db *testdb.DB) {
		m := newTeam(newTown(t, db), relayproc.MidPublish)
		for n := range 2 {
			m.store(40, n)
		}
		left := m.freeze().Counts[relayproc.Left]
		require.Positive(t, left)
		m.store(40, 2)
		m.check()

		before := m.broker.byFrozen()
		m.thaw()
		assert.Equal(t, left, m.broker.byFrozen()-before, "messages that the thawed relay sent")
		m.store(40, 3)
		rig.Eventually(m, "it works again", func() bool { return m.broker.byFrozen() > before+left })
		m.check()
		m.close()
	})
}

// A relay freezes before it writes off what it sent, for longer than its lease, and meanwhile
// nobody gets through to the broker. Thawed, it writes nothing off: whoever has the lease
// sends it again.
func TestAFrozenRelayMarksNothingLate(t *testing.T) {
	testdb.Turn(t, 1, freezes)
	t.Parallel()
	testdb.Some(t, 1, func(t *testing.T, db *testdb.DB) {
		m := newTeam(newTown(t, db), relayproc.BeforeWriteOff)
		m.store(40, 0)
		m.frozen.Await(process.At, 1)
		m.broker.refusing(func(string, *message.Message) error { return errors.New("the broker is out") })
		m.freeze()
		unwritten := m.unwrittenOfFrozen()
		require.Positive(t, unwritten)

		m.thaw()
		assert.Equal(t, unwritten, m.unwrittenOfFrozen(), "the thawed relay wrote off what others are to send")
		m.broker.refusing(nil)
		duplicates := m.check()
		assert.GreaterOrEqual(t, duplicates, unwritten)
		m.close()
	})
}

// A relay freezes in the middle of a write-off: messages of a key are held back, and the
// one that they wait for is not set aside yet. It has locked nothing, so the others work
// on; and thawed it changes nothing any more.
func TestARelayFrozenInAWriteOffStopsNoOther(t *testing.T) {
	testdb.Turn(t, 1, freezes)
	t.Parallel()
	testdb.Some(t, 1, func(t *testing.T, db *testdb.DB) {
		m := newTeam(newTown(t, db), relayproc.AfterHold)
		refused := ""
		m.broker.refusing(func(_ string, msg *message.Message) error {
			if refused == "" && msg.Metadata.Get("key") != "" && msg.Metadata.Get("relay") == "frozen" {
				refused = msg.UUID
			}
			if msg.UUID != refused || msg.Metadata.Get("relay") != "frozen" {
				return nil
			}
			return errors.New("not this one")
		})
		for n := range 2 {
			m.store(40, n)
		}
		m.freeze()
		m.store(40, 2)
		m.check()
		m.thaw()
		m.store(40, 3)
		m.check()
		m.close()
	})
}

// unwrittenOfFrozen counts what the frozen relay sent, and what is still in the table. The others may record theirs meanwhile.
func (m *team) unwrittenOfFrozen() (n int) {
	m.Helper()
	var held []string
	require.NoError(m, m.db.SelectContext(m.Context(), &held, `SELECT uuid FROM millrace_outbox`))
	senders := m.broker.senders()
	for _, id := range held {
		if slices.Contains(senders[id], "frozen") {
			n++
		}
	}
	return n
}

// byFrozen counts what the frozen relay of a team sent.
func (b *memoryBroker) byFrozen() (n int) {
	for _, relays := range b.senders() {
		for _, r := range relays {
			if r == "frozen" {
				n++
			}
		}
	}
	return n
}
