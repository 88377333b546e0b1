package durable_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/process"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

const produced = 2

// A process is killed at each boundary of a message that is stored, leased, handled and
// answered; another one gets what the broker was not told of, and finds what is stored.
func TestKilledAtEveryBoundary(t *testing.T) {
	testdb.Turn(t, 3, seconds)
	t.Parallel()
	type wiring struct {
		dialect string
		mode    pubsub.Mode
		bare    bool
		produce int
	}
	var all []wiring
	for _, dialect := range testdb.Dialects() {
		for _, mode := range []pubsub.Mode{pubsub.StoreOnFailure, pubsub.StoreFirst} {
			for _, bare := range []bool{false, true} {
				for _, produce := range []int{0, produced} {
					all = append(all, wiring{dialect, mode, bare, produce})
				}
			}
		}
	}
	for _, w := range testdb.Sample(t, 1, all) {
		t.Run(fmt.Sprintf("%s, stored %s, without inbox %v, %d produced", w.dialect, modes[w.mode], w.bare, w.produce), func(t *testing.T) {
			t.Parallel()
			b, s := newServed(t, testdb.On(t, w.dialect))
			s.Mode, s.Bare, s.Produce, s.Marks = w.mode, w.bare, w.produce, t.TempDir()
			newCrash(b, s).run()
		})
	}
}

var modes = map[pubsub.Mode]string{pubsub.StoreOnFailure: "on failure", pubsub.StoreFirst: "first"}

// What a handler produced could not be published, and the process is killed: before that is
// recorded, or while it waits for another try. It goes out as it was, without another run.
func TestKilledWithAnOutcome(t *testing.T) {
	t.Parallel()
	testdb.Some(t, 1, func(t *testing.T, db *testdb.DB) {
		b := newBed(t, tuned(t, db))
		b.createWorks()
		for mode, name := range modes {
			s := b.served()
			s.Mode, s.Produce, s.Deaf, s.Backoff = mode, produced, true, 100*time.Millisecond
			notYet := map[pubsub.Mode]process.Point{pubsub.StoreOnFailure: beforeStore, pubsub.StoreFirst: beforeAnswer}[mode]
			for _, stop := range []process.Point{notYet, ""} {
				c := newCrash(b, s)
				m := c.letter(false)
				deaf := c.launch(t)
				deaf.Deliver(process.Delivery{Message: m, Stop: stop})
				if stop == "" {
					rig.Eventually(c.T, "it waits for another try", func() bool {
						return c.open(admin.Settling) == 1 && len(deaf.Events(process.Acked)) == 1
					})
				} else {
					deaf.Await(process.At, 1)
				}
				deaf.Kill()
				c.collect(deaf)
				kept, err := admin.New(b.store).Unsettled(t.Context(), admin.ConsumerFilter{}, 0, 10)
				require.NoError(t, err)
				require.Len(t, kept, 1)
				c.lapse()
				c.Deaf = false
				heard := c.launch(t)
				c.redeliver(heard)
				c.quiet(heard)
				heard.Close()
				c.collect(heard)
				c.check()
				assert.Empty(t, heard.Events(ran), "stored %s, %s: the handler ran again", name, stop)
				for i, out := range kept[0].Messages {
					assert.Equal(t, out.UUID, c.published[m.UUID][i].UUID)
				}
				assert.Zero(t, c.outcomes())
			}
		}
	})
}

// tuned returns a pool on the database that does not wait for the disk, where it is a file.
func tuned(t *testing.T, db *testdb.DB) *testdb.DB {
	t.Helper()
	if db.Dialect == "sqlite" {
		return db.Open(t, testdb.Params("_pragma", "synchronous(OFF)"))
	}
	return db
}

// queuePoints are where a process can be killed before the handler has a stored message.
var queuePoints = []process.Point{
	beforeStore, midStore, afterStore, beforeLease, midLease, afterLease, midHandOut, afterHandOut,
}

// points are where a process with these settings can be killed.
func (s served) points() []process.Point {
	points := slices.Concat(queuePoints, []process.Point{process.BeforeClaim, process.InHandler})
	if !s.Bare {
		points = append(points, process.BeforeCommit, process.AfterCommit)
	}
	if s.Produce > 0 {
		points = append(points, process.BeforePublish, process.MidPublish, process.AfterPublish)
	}
	if s.Bare || s.Produce > 0 { // otherwise the handler's transaction holds the answer
		points = append(points, answerPoints...)
	}
	return points
}

var answerPoints = []process.Point{beforeAnswer, midAnswer, afterAnswer}

// crash is a broker whose messages outlive the processes.
type crash struct {
	*bed
	served
	all       []process.Message
	acked     map[string]bool
	published map[string][]process.Message // by the message they were produced for
}

func newCrash(b *bed, s served) *crash {
	return &crash{bed: b, served: s, acked: map[string]bool{}, published: map[string][]process.Message{}}
}

func (c *crash) run() {
	c.Helper()
	p := c.launch(c.T)
	for _, point := range c.points() {
		p = c.killAt(p, point, c.Mode == pubsub.StoreOnFailure)
	}
	if c.Mode == pubsub.StoreOnFailure { // what goes straight through has some of the boundaries, too
		for _, point := range c.points() {
			if !slices.Contains(queuePoints, point) && !slices.Contains(answerPoints, point) {
				p = c.killAt(p, point, false)
			}
		}
	}
	c.quiet(p)
	p.Close()
	c.collect(p)
	c.check()
}

// letter returns a message that the broker has from now on.
func (c *crash) letter(fails bool) process.Message {
	m := process.Message{UUID: watermill.NewUUID(), Metadata: map[string]string{}, Payload: []byte("payload")}
	if fails {
		m.Metadata[failsFirst] = "yes"
	}
	c.all = append(c.all, m)
	return m
}

// killAt kills p at a point of a new message, and returns the process that follows.
func (c *crash) killAt(p *process.Process, point process.Point, fails bool) *process.Process {
	c.Helper()
	victim, bystander := c.letter(fails), c.letter(false)
	p.Deliver(process.Delivery{Message: bystander})
	p.Deliver(process.Delivery{Message: victim, Stop: point})
	require.Equal(c, point, p.Await(process.At, 1)[0].Point)
	p.Kill()
	c.collect(p)
	c.lapse()
	next := c.launch(c.T)
	c.redeliver(next)
	c.quiet(next)
	return next
}

// lapsing is a lease that no living process loses, and one that is gone loses by [bed.lapse], or soon.
func lapsing() time.Duration {
	if testdb.Long() {
		return 5 * time.Second
	}
	return time.Minute
}

// lapse ends the leases of a process that was killed, unless there is time to wait for it.
func (b *bed) lapse() {
	b.Helper()
	if testdb.Long() {
		return
	}
	b.db.Do(b, `UPDATE millrace_messages SET due_at = 1 WHERE status IN (1, 2, 3, 4)`)
}

// redeliver hands over what was not acked, marked as RabbitMQ does.
func (c *crash) redeliver(p *process.Process) {
	for _, m := range c.all {
		if c.acked[m.UUID] {
			continue
		}
		again := process.Message{UUID: m.UUID, Metadata: map[string]string{redelivered: "true"}, Payload: m.Payload}
		for k, v := range m.Metadata {
			again.Metadata[k] = v
		}
		p.Deliver(process.Delivery{Message: again})
	}
}

// quiet waits until everything is acked and nothing is stored.
func (c *crash) quiet(p *process.Process) {
	c.Helper()
	rig.Eventually(c.T, "everything is acked and handled", func() bool {
		for _, e := range p.Events(process.Acked) {
			c.acked[e.UUID] = true
		}
		for _, m := range c.all {
			if !c.acked[m.UUID] {
				return false
			}
		}
		return c.rows() == 0
	})
}

// collect learns what a process that has ended had done.
func (c *crash) collect(p *process.Process) {
	for _, e := range p.Events(process.Acked) {
		c.acked[e.UUID] = true
	}
	for _, e := range p.Events(process.Published) {
		c.published[e.UUID] = append(c.published[e.UUID], *e.Published)
	}
}

// check holds the invariants: nothing is lost, and with the inbox nothing doubled.
func (c *crash) check() {
	c.Helper()
	again := 0
	for _, m := range c.all {
		works := c.works(m.UUID)
		if c.Bare {
			assert.GreaterOrEqual(c, works, 1, "effects of %s", m.UUID)
		} else {
			assert.Equal(c, 1, works, "effects of %s", m.UUID)
		}
		again += works - 1
		c.checkPublished(m.UUID)
	}
	assert.Zero(c, c.rows())
	assert.Zero(c, c.count(`SELECT COUNT(*) FROM millrace_claims WHERE result = 0`), "open claims")
	c.Logf("%d messages, %d effects more than once", len(c.all), again)
}

// checkPublished says that everything produced for a message is with the broker, and with
// the inbox each of it under one UUID, however often.
func (c *crash) checkPublished(uuid string) {
	c.Helper()
	known := map[string]string{} // UUID by number
	for _, out := range c.published[uuid] {
		number := out.Metadata["number"]
		if first, found := known[number]; found && !c.Bare {
			assert.Equal(c, first, out.UUID, "published again, but differently")
		}
		known[number] = out.UUID
	}
	assert.Len(c, known, c.Produce, "produced for %s", uuid)
}
