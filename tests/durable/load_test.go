package durable_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/process"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// A process starts with many messages left over in the table, and its source says nothing,
// ever. All of them are handled once, and the process does not grow with their number.
func TestManyLeftOver(t *testing.T) {
	testdb.Turn(t, 3, seconds)
	t.Parallel()
	const growth = 16 << 20 // of the heap: what it remembers has its bounds
	first, doubled, weighings := 250, 1, 10
	if testdb.Long() {
		first, doubled, weighings = 3125, 6, 200
	}
	messages := first << doubled
	testdb.Some(t, 1, func(t *testing.T, db *testdb.DB) {
		b := newBed(t, tuned(t, db))
		b.createWorks()
		b.leave(first, func(n int) *message.Message {
			return message.NewMessage(fmt.Sprint(n, " "), make([]byte, 1000))
		})
		for n := range doubled {
			b.double(string(rune('a' + n)))
		}
		require.Equal(t, messages, b.rows())
		if db.Dialect == "postgres" { // as autovacuum does within a minute, where it is on
			db.Do(t, `ANALYZE`)
		}
		s := b.served()
		s.Weigh, s.Lease = messages/weighings, time.Minute
		began := time.Now()
		p := s.launch(t)
		for n := range weighings { // Await has patience for each
			p.Await(weighed, n+1)
		}
		rig.Eventually(b, "all are handled", func() bool { return b.rows() == 0 })
		took := time.Since(began)
		counts := p.Close()
		assert.GreaterOrEqual(t, counts[ran], messages)
		assert.LessOrEqual(t, counts[ran], messages+counts[undone], "runs, of which deadlocks undid %d\n%s", counts[undone], p.Said())
		assert.Equal(t, messages, b.count(`SELECT COUNT(*) FROM works`))
		assert.Equal(t, messages, b.count(`SELECT COUNT(DISTINCT uuid) FROM works`))
		least, most := 1<<40, 0
		for _, e := range p.Await(weighed, weighings) {
			least, most = min(least, e.Counts["heap"]), max(most, e.Counts["heap"])
		}
		assert.Less(t, most-least, growth, "the heap grew from %d to %d bytes", least, most)
		t.Logf("%d messages: handled in %v (%.0f/s), heap between %d and %d KB", messages,
			took.Round(time.Millisecond), float64(messages)/took.Seconds(), least>>10, most>>10)
	})
}

// double stores for each message another one, whose key and UUID have a letter more.
func (b *bed) double(letter string) {
	b.Helper()
	and := map[string]string{
		"postgres": `message_id || 'a'::bytea, uuid || 'a'::bytea`,
		"mysql":    `CONCAT(message_id, 'a'), CONCAT(uuid, 'a')`,
		"sqlite":   `CAST(message_id || 'a' AS BLOB), CAST(uuid || 'a' AS BLOB)`,
	}[b.db.Dialect]
	and = strings.ReplaceAll(and, "'a'", "'"+letter+"'")
	b.db.Do(b, `
		INSERT INTO millrace_messages (message_id, uuid, consumer, status, topic, event_type, event_version,
			metadata, payload, payload_hash, reason, received_at, due_at)
		SELECT `+and+`, consumer, status, topic, event_type, event_version, metadata, payload, payload_hash, reason,
			received_at, due_at
		FROM millrace_messages`)
}

// One handler takes longer than a lease, and ends after the many quick ones that came later: none
// of them waits for it. Another process is ready to take over what lapses: nothing does, so nothing
// runs twice.
func TestSlowHandlerBesideQuickOnes(t *testing.T) {
	t.Parallel()
	quick, slow, lease := 300, 22*time.Second, 20*time.Second // a busy machine renews a lease seconds late
	if testdb.Long() {
		quick, slow = 1000, time.Minute
	}
	testdb.Some(t, 1, func(t *testing.T, db *testdb.DB) {
		b, s := newServed(t, db)
		s.Mode, s.Timeout, s.TwinWait = pubsub.StoreFirst, time.Minute+slow, time.Minute+slow
		s.Lease = lease
		took := slow
		if db.Dialect == "sqlite" { // its transaction stops every writer, renewals of leases too
			took = 2 * time.Second
			s.Timeout, s.TwinWait, s.Lease = time.Minute, time.Minute, 10*took
		}
		c := newCrash(b, s)
		processes := []*process.Process{c.launch(t), c.launch(t)}
		first := c.letter(false)
		first.Metadata[takes] = took.String()
		if db.Dialect != "sqlite" {
			first.Metadata[outlasts] = strconv.Itoa(quick)
		}
		processes[0].Deliver(process.Delivery{Message: first})
		rig.Eventually(c.T, "the slow handler runs", func() bool {
			return len(processes[0].Events(ran))+len(processes[1].Events(ran)) > 0
		})
		for n := range quick {
			m := c.letter(false)
			m.Metadata[takes] = "5ms"
			processes[n%2].Deliver(process.Delivery{Message: m})
		}
		rig.Eventually(c.T, "all are handled", func() bool { return c.count(`SELECT COUNT(*) FROM works`) > quick && c.rows() == 0 })
		runs := map[string]int{}
		for _, p := range processes {
			p.Close()
			for _, e := range p.Events(ran) {
				runs[e.UUID]++
				assert.Zero(t, e.Counts["attempts"], "a lease lapsed")
			}
			c.collect(p)
		}
		for _, m := range c.all {
			assert.Equal(t, 1, runs[m.UUID], "runs")
		}
		c.check()
		t.Logf("%d quick handlers beside one of %v", quick, took)
	})
}

// Four processes work on one queue: every effect is there once, no process is left with
// next to nothing, and the messages of a key are handled as they arrived.
func TestFourProcesses(t *testing.T) {
	testdb.Turn(t, 3, seconds)
	t.Parallel()
	const processes, keys, perKey = 4, 40, 10
	testdb.Some(t, 1, func(t *testing.T, db *testdb.DB) {
		b, s := newServed(t, db)
		s.Mode, s.Ordered, s.Weigh = pubsub.StoreFirst, true, 1<<30
		s.Concurrency = 5
		var all []*process.Process
		for n := range processes {
			s.Name = fmt.Sprint(n)
			all = append(all, s.launch(t))
		}
		for _, p := range all {
			p.Await(running, 1)
		}
		b.leave(keys*perKey, func(n int) *message.Message {
			msg := message.NewMessage(fmt.Sprintf("%d at %d", n%keys, n/keys), []byte("payload"))
			msg.Metadata.Set("key", fmt.Sprint(n%keys))
			msg.Metadata.Set(takes, "2ms")
			return msg
		})
		rig.Eventually(b, "all is handled", func() bool { return b.rows() == 0 })
		for _, p := range all {
			p.Close()
		}
		b.checkLanes(keys, perKey, func(lane, n int) string { return fmt.Sprintf("%d at %d", lane, n) })
		least := keys * perKey
		shares := map[string]int{}
		for n := range processes {
			shares[fmt.Sprint(n)] = b.count(`SELECT COUNT(*) FROM works WHERE process = ?`, fmt.Sprint(n))
			least = min(least, shares[fmt.Sprint(n)])
		}
		t.Logf("shares of %d messages: %v", keys*perKey, shares)
		if db.Dialect == "sqlite" {
			return // it gives its one lock to whoever asks at the right moment
		}
		assert.GreaterOrEqual(t, least, keys*perKey/processes/10, "the smallest share: %v", shares)
	})
}

// leave stores n messages, as a process did that is gone.
func (b *bed) leave(n int, msg func(n int) *message.Message) {
	b.Helper()
	queue := rig.Queue(b, b.store, inbox.QueueConfig{
		Consumer: consumer, OrderKey: func(msg *message.Message) (string, error) { return msg.Metadata.Get("key"), nil },
	})
	const atOnce = 500
	for first := 0; first < n; first += atOnce {
		var batch []*message.Message
		for i := first; i < min(first+atOnce, n); i++ {
			batch = append(batch, msg(i))
		}
		require.NoError(b, queue.Put(b.Context(), "orders", batch...))
	}
}

// checkLanes says that each lane was worked on once and in order.
func (b *bed) checkLanes(lanes, length int, uuid func(lane, n int) string) {
	b.Helper()
	var done []struct {
		UUID string `db:"uuid"`
		Lane string `db:"lane"`
	}
	require.NoError(b, b.db.SelectContext(context.WithoutCancel(b.Context()), &done, `SELECT uuid, lane FROM works ORDER BY id`))
	byLane := map[string][]string{}
	for _, d := range done {
		byLane[d.Lane] = append(byLane[d.Lane], d.UUID)
	}
	require.Len(b, byLane, lanes)
	want := map[string]bool{}
	for lane := range lanes {
		for n := range length {
			want[uuid(lane, n)] = true
		}
	}
	assert.Len(b, done, len(want), "effects")
	for lane, uuids := range byLane {
		assert.Len(b, uuids, length, "lane %s", lane)
		for n, u := range uuids {
			assert.True(b, want[u], u)
			assert.Contains(b, u+"|", fmt.Sprintf(" at %d|", n), "lane %s is not in order: %v", lane, uuids)
		}
	}
}
