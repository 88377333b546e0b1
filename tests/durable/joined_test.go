package durable_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestCopyOfAMessageInWork: whoever drops a copy of a message whose run may fail leaves its row to stand for both.
func TestCopyOfAMessageInWork(t *testing.T) {
	testdb.Conformance(t, joinedBodies)
}

// joins fails the run of a message, and has somebody drop a copy meanwhile. Then the failure is taken over.
func (b *bed) joins(config inbox.QueueConfig, msg *message.Message, drop func()) {
	b.Helper()
	config.Consumer = consumer
	queue := rig.Queue(b, b.store, config)
	require.NoError(b, queue.Put(b.Context(), "orders", msg))
	h := millrace.Inbox{Store: b.store, Consumer: consumer, Key: config.Key, Options: inbox.Options{Epoch: config.Epoch}}.Middleware(failsAt(1))
	require.ErrorIs(b, b.acks(queue, func(msg *message.Message) ([]*message.Message, error) {
		_, err := h(msg)
		drop()
		return nil, err
	}), errBoom)
	assert.Equal(b, 1, b.rows())
	assert.Equal(b, msg.UUID, b.only(b.store, admin.FailedRetryable).UUID)
}

var joinedBodies = []testdb.Body{
	{Name: "a copy of an older epoch", Why: "it may be what somebody sent again because the run failed", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage()
		b.joins(inbox.QueueConfig{Epoch: 1}, msg, func() {
			old := rig.Queue(b, b.process(), inbox.QueueConfig{Consumer: consumer})
			require.NoError(t, old.Put(t.Context(), "orders", msg.Copy()))
			require.Equal(t, 2, b.rows())
			b.takes(rig.Queue(b, b.process(), inbox.QueueConfig{Consumer: consumer, Epoch: 1}), 0)
			require.Equal(t, 1, b.rows(), "it is superseded")
		})
	})},
	{Name: "a copy that had no key", Why: "it may be what somebody sent again because the run failed", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg, none := newMessage(), false
		key := inbox.ByFunc("uuid, mostly", func(msg *message.Message) (string, error) {
			if none {
				return "", errBoom
			}
			return msg.UUID, nil
		})
		b.joins(inbox.QueueConfig{Key: key}, msg, func() {
			none = true
			require.NoError(t, rig.Queue(b, b.process(), inbox.QueueConfig{Consumer: consumer, Key: key}).Put(t.Context(), "orders", msg.Copy()))
			none = false
			require.Equal(t, 2, b.rows())
			b.db.Do(t, `UPDATE millrace_messages SET status = ?, due_at = 1 WHERE status = ?`, admin.FailedRetryable, admin.FailedTerminal)
			b.takes(rig.Queue(b, b.process(), inbox.QueueConfig{Consumer: consumer, Key: key}), 0)
			require.Equal(t, 1, b.rows(), "it is a copy")
		})
	})},
	{Name: "copies of messages in work, stored in two orders at once", Why: "whoever notes them locks their rows in one order", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		if b.db.Dialect != "postgres" { // SQLite has one writer, and on MySQL an INSERT already locks the row that it finds
			return
		}
		msgs := []*message.Message{message.NewMessage("1", nil), message.NewMessage("2", nil)}
		b.storeIn(inbox.QueueConfig{}, msgs...)
		b.db.Do(t, `UPDATE millrace_messages SET status = ?, lease_token = 5, due_at = due_at + 3600000000`, admin.InProgress)
		events, first := &rig.Events{}, faults.Open(t, b.db)
		second := faults.Open(t, b.db)
		noted, asked := make(chan struct{}), make(chan struct{})
		var once sync.Once
		var inserts atomic.Int32
		first.Set(faults.Plan{After: func(_ context.Context, call string) error {
			if strings.Contains(call, "reason_code = 2, due_at") {
				once.Do(func() {
					close(noted)
					<-asked
				})
			}
			return nil
		}})
		second.Set(faults.Plan{Before: func(_ context.Context, call string) error {
			if strings.Contains(call, "INTO millrace_messages") && inserts.Add(1) == 2 { // of what the first has noted
				close(asked)
			}
			return nil
		}})
		put := func(pool *faults.Faults, msgs ...*message.Message) error {
			store := rig.NewStore(t, pool.DB, inbox.Config{Observers: []inbox.Observer{events}})
			return rig.Queue(t, store, inbox.QueueConfig{Consumer: consumer}).Put(t.Context(), "orders", msgs...)
		}
		ended := make(chan error, 1)
		go func() { ended <- put(first, msgs[0].Copy(), msgs[1].Copy()) }()
		<-noted
		require.NoError(t, put(second, msgs[1].Copy(), msgs[0].Copy()))
		require.NoError(t, rig.Within(t, ended, "it is stored"))
		assert.Zero(t, events.Count("contention"))
		assert.Equal(t, 2, b.rows())
	})},
}
