package durable_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/process"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// Four processes work on one queue: every effect is there once, no process is left with
// next to nothing, and the messages of a key are handled as they arrived.
func TestFourProcesses(t *testing.T) {
	t.Parallel()
	const processes, keys, perKey = 4, 40, 10
	testdb.Some(t, 1, func(t *testing.T, db *testdb.DB) {
		b := newBed(t, tuned(t, db))
		b.createWorks()
		s := b.served()
		s.Mode, s.Ordered, s.Waits, s.Weigh = pubsub.StoreFirst, true, true, 1<<30
		s.Concurrency = 5
		b.leave(keys*perKey, func(n int) *message.Message {
			msg := message.NewMessage(fmt.Sprintf("%d at %d", n%keys, n/keys), []byte("payload"))
			msg.Metadata.Set("key", fmt.Sprint(n%keys))
			msg.Metadata.Set(takes, "2ms")
			return msg
		})
		var all []*process.Process
		for n := range processes {
			s.Name = fmt.Sprint(n)
			all = append(all, s.launch(t))
		}
		for _, p := range all {
			p.GoOn()
		}
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
