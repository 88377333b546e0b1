package tests_test

import (
	"encoding/base64"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/internal/stored"
	sending "github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/process"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// What a service of the release before left in the database, in every state, one of this
// source works off, and the reverse; then both work beside each other.
func TestRollingUpgradeOfEveryRow(t *testing.T) {
	testdb.Turn(t, 1, upgrades)
	t.Parallel()
	built := releases(t)
	testdb.Some(t, 1, func(t *testing.T, db *testdb.DB) {
		_, err := db.ExecContext(t.Context(),
			`CREATE TABLE effects (consumer VARCHAR(20) NOT NULL, uuid VARCHAR(700) NOT NULL, payload VARCHAR(100) NOT NULL)`)
		require.NoError(t, err)
		u := &upgrade{bed: &bed{T: t, db: db}, handed: map[*process.Process]int{}, nacked: map[*process.Process]int{}, published: map[string]map[string]bool{}}
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("what is there: %v", u.states())
			}
		})
		u.pass("old", built.before, "new", built.after) // the old one migrates
		u.pass("new", built.after, "old", built.before)
		u.beside(built)
	}, testdb.Empty())
}

// upgrade is a broker whose messages outlive the services.
type upgrade struct {
	*bed
	sent      []process.Delivery
	handed    map[*process.Process]int   // how many copies
	nacked    map[*process.Process]int   // how many of them, that were delivered again
	published map[string]map[string]bool // the UUIDs of what was produced, by the message it is for
}

func (u *upgrade) start(program string, ill bool) *process.Process {
	u.Helper()
	return process.Launch(u.T, program, "MILLRACE_TEST_UPGRADE",
		map[string]any{"Driver": u.db.Driver, "DSN": u.db.DSN, "Ill": ill})
}

func (u *upgrade) deliver(p *process.Process, d process.Delivery) {
	u.Helper()
	u.handed[p]++
	p.Deliver(d)
}

// send delivers a message to the consumer of its name, with metadata of "key=value".
func (u *upgrade) send(p *process.Process, consumer string, metadata ...string) process.Delivery {
	u.Helper()
	payload := "payload of " + consumer
	if consumer == "packed" || consumer == "opened" {
		payload = "packed " + base64.StdEncoding.EncodeToString([]byte(payload))
	}
	d := process.Delivery{Message: process.Message{
		UUID: watermill.NewUUID(), Payload: []byte(payload), Metadata: map[string]string{"topic": consumer, "account": "ada"},
	}}
	for _, m := range metadata {
		key, value, _ := strings.Cut(m, "=")
		d.Metadata[key] = value
	}
	if id := d.Metadata["id"]; id != "" {
		d.UUID = id + " " + d.UUID
	}
	u.sent = append(u.sent, d)
	if p != nil {
		u.deliver(p, d)
	}
	return d
}

// pass has one service leave rows of every kind, and another one work them off.
func (u *upgrade) pass(from, leaving, to, finishing string) {
	u.Helper()
	u.sent = nil
	p := u.start(leaving, true)
	for _, id := range []string{"", "no UUID", strings.Repeat("long ", 60)} { // each form of a key
		u.send(p, "seen", "id="+id)
	}
	u.send(p, "packed")
	u.send(p, "opened")
	u.send(p, "outcomes", "produces=1")
	u.send(p, "relayed", "produces=1")
	u.send(p, "settling", "produces=1")
	collided := u.send(p, "recorded")
	u.send(p, "recorded", "fails=later")
	u.send(p, "failing", "fails=later")
	u.send(p, "failing", "fails=for good")
	u.send(p, "failing", "fails=hangs")
	gated := u.gated(p)
	u.send(p, "waiting") // by then the consumer is known
	u.eventually("the consumer that is to be paused is known", func() bool { return u.effectsBy("waiting") > 0 }, p)
	p.GoOn()
	p.Await("operated", 1)
	waiting := u.send(p, "waiting")
	u.eventually("a message is there to collide with", func() bool { return u.effectsBy("recorded") > 0 }, p)
	other := collided
	other.Payload, other.Metadata = []byte("another payload"), maps.Clone(collided.Metadata)
	u.sent = append(u.sent, other)
	u.deliver(p, other)
	u.Cleanup(func() {
		if u.Failed() {
			u.Log("states at the end:", u.states())
		}
	})
	u.eventually(from+" has left rows in every state", func() bool {
		if u.count(`SELECT COUNT(*) FROM effects WHERE uuid = ?`, waiting.UUID) > 0 { // by a look that began before the pause
			waiting = u.send(p, "waiting")
		}
		return u.everyState()
	}, p)
	p.Kill()
	u.collect(p)

	q := u.start(finishing, false)
	q.GoOn()
	q.Await("operated", 1)
	rig.Eventually(u, to+" has worked off the table", func() bool {
		return u.count(`SELECT COUNT(*) FROM millrace_messages WHERE status <> ?`, int(admin.Held)) == 0
	})
	first := gated(q)
	u.T.Logf("%s has left, and %s finds, %d messages; then comes %s", from, to, len(u.sent)-1, first.UUID)
	// A release knows what the ones before it hashed, and cannot know what later ones will.
	u.redeliver(q, func(d process.Delivery) bool { return to == "old" && packed(d) })
	u.done(q)
	q.Close()
	u.collect(q)
	u.check()
}

func packed(d process.Delivery) bool { return strings.HasPrefix(string(d.Payload), "packed ") }

// gated sends the second and third version of an aggregate, and returns what sends the first.
func (u *upgrade) gated(p *process.Process) func(*process.Process) process.Delivery {
	u.Helper()
	aggregate := watermill.NewUUID()
	version := func(n int64) []string {
		msg := message.NewMessage("", nil)
		sending.Stamp(msg, aggregate, n)
		var all []string
		for k, v := range msg.Metadata {
			all = append(all, k+"="+v)
		}
		return all
	}
	u.send(p, "gated", version(3)...)
	u.send(p, "gated", version(2)...)
	return func(p *process.Process) process.Delivery { return u.send(p, "gated", version(1)...) }
}

// effectsBy counts the effects of this pass.
func (u *upgrade) effectsBy(consumer string) (n int) {
	for _, d := range u.sent {
		if d.Metadata["topic"] == consumer {
			n += u.count(`SELECT COUNT(*) FROM effects WHERE uuid = ?`, d.UUID)
		}
	}
	return n
}

// everyState reports whether there is something in every state.
func (u *upgrade) everyState() bool {
	s := u.states()
	for _, status := range stored.Open {
		if s[fmt.Sprint(status)] == 0 {
			return false
		}
	}
	return s[fmt.Sprint(admin.Held)] == 2 && s["outcomes"] == 2 && s["relayed"] == 1 && s["seen"] == 3 && s["packed"] == 1 && s["opened"] == 1
}

// states counts the rows of each state, and effects of consumers.
func (u *upgrade) states() map[string]int {
	all := map[string]int{"outcomes": u.count(`SELECT COUNT(*) FROM millrace_outcomes`)}
	for _, s := range stored.Open {
		all[fmt.Sprint(s)] = u.count(`SELECT COUNT(*) FROM millrace_messages WHERE status = ?`, int(s))
	}
	for _, consumer := range []string{"relayed", "seen", "packed", "opened"} {
		all[consumer] = u.effectsBy(consumer)
	}
	return all
}

// redeliver delivers a copy of everything, answered or not, but for what except says.
func (u *upgrade) redeliver(p *process.Process, except func(process.Delivery) bool) {
	u.Helper()
	for _, d := range u.sent {
		if except == nil || !except(d) {
			u.deliver(p, d)
		}
	}
}

// eventually waits for something. What is nacked meanwhile, as where a Timeout runs out on a machine with much to
// do, is delivered again.
func (u *upgrade) eventually(what string, condition func() bool, services ...*process.Process) {
	u.Helper()
	rig.Eventually(u, what, func() bool {
		for _, p := range services {
			nacked := p.Events(process.Nacked)
			for _, e := range nacked[u.nacked[p]:] {
				for _, d := range u.sent {
					if d.UUID == e.UUID {
						u.deliver(p, d)
					}
				}
			}
			u.nacked[p] = len(nacked)
		}
		return condition()
	})
}

// done returns once everything was handled and published.
func (u *upgrade) done(services ...*process.Process) {
	u.Helper()
	u.eventually("everything is handled", func() bool {
		for _, p := range services {
			if len(p.Events(process.Nacked))+len(p.Events(process.Acked)) < u.handed[p] {
				return false
			}
		}
		return u.effectsOfAll() >= len(u.sent) && u.count(`SELECT COUNT(*) FROM millrace_outcomes`) == 0 &&
			u.count(`SELECT COUNT(*) FROM millrace_messages`) == 0 && u.allPublished(services)
	}, services...)
}

func (u *upgrade) effectsOfAll() int {
	sent := map[string]bool{}
	for _, d := range u.sent {
		sent[d.UUID] = true
	}
	n := 0
	for uuid := range sent {
		n += u.count(`SELECT COUNT(*) FROM effects WHERE uuid = ?`, uuid)
	}
	return n
}

func (u *upgrade) allPublished(services []*process.Process) bool {
	found := map[string]bool{}
	for _, p := range services {
		for _, e := range p.Events(process.Published) {
			found[e.UUID] = true
		}
	}
	for _, d := range u.sent {
		if d.Metadata["produces"] != "" && !found[d.UUID] {
			return false
		}
	}
	return true
}

func (u *upgrade) collect(p *process.Process) {
	for _, e := range p.Events(process.Published) {
		if u.published[e.UUID] == nil {
			u.published[e.UUID] = map[string]bool{}
		}
		u.published[e.UUID][e.Published.UUID] = true
	}
}

// check holds that each message had its effect once, what it produced went out under one UUID,
// and nothing is left: no copy was taken for a collision.
func (u *upgrade) check() {
	u.Helper()
	for _, d := range u.sent {
		payload := string(d.Payload)
		if packed(d) {
			payload = "payload of " + d.Metadata["topic"]
		}
		assert.Equal(u, 1, u.count(`SELECT COUNT(*) FROM effects WHERE consumer = ? AND uuid = ? AND payload = ?`,
			d.Metadata["topic"], d.UUID, payload), "effects of %+v", d)
		if d.Metadata["produces"] != "" {
			assert.Len(u, u.published[d.UUID], 1, "what %s produced", d.UUID)
		}
	}
	var left []struct {
		Status   int
		Consumer string
		Reason   string
	}
	require.NoError(u, u.db.SelectContext(u.Context(), &left, `SELECT m.status, c.name AS consumer, m.reason
		FROM millrace_messages m JOIN millrace_consumers c ON c.id = m.consumer`))
	assert.Empty(u, left)
}

// beside has services of both releases work on the same messages at once.
func (u *upgrade) beside(built programs) {
	u.Helper()
	u.sent = nil
	services := []*process.Process{u.start(built.before, false), u.start(built.after, false)}
	for n := range 5 {
		for _, consumer := range []string{"seen", "outcomes", "relayed", "recorded", "settling", "waiting"} {
			u.send(nil, consumer, "produces=1", fmt.Sprintf("number=%d", n))
		}
		first := u.gated(services[n%2])
		first(nil)
	}
	for _, p := range services {
		u.redeliver(p, nil)
	}
	u.done(services...)
	for _, p := range services {
		p.Close()
		u.collect(p)
	}
	u.check()
}
