package durable_test

import (
	"log/slog"
	"regexp"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestAHandlerThatDoesNotReturnStopsNobody: a message that may have ended its process is delivered alone, but not at the price
// of all others.
func TestAHandlerThatDoesNotReturnStopsNobody(t *testing.T) {
	testdb.Conformance(t, aloneBodies)
}

var aloneBodies = []testdb.Body{
	{Name: "before messages that are to be delivered alone", Why: "they wait, and are charged with nothing", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		const n = 3
		a := newAlone(b, n)
		hangs := newMessage()
		entered, goOn := a.start(hangs)
		assert.True(t, a.deliver(hangs))
		rig.Within(t, entered, "the handler has it")
		a.abandon()
		for range 2 {
			before := b.count(`SELECT COALESCE(MAX(due_at), 0) FROM millrace_messages WHERE lease_token = 0`)
			a.hurry()
			a.goesOn()
			back := map[int64]bool{}
			rig.Eventually(b, "each is put back", func() bool {
				var ids []int64
				require.NoError(b, b.db.SelectContext(b.Context(), &ids, b.db.Rebind(`
					SELECT id FROM millrace_messages WHERE status = 2 AND attempts = 0 AND lease_token = 0 AND due_at > ?`), before))
				for _, id := range ids {
					back[id] = true
				}
				return len(back) == n
			})
		}
		assert.Equal(t, 1, a.events.Said("a handler has had a stored message for too long"))
		backlog, err := admin.New(b.store).Backlog(t.Context(), admin.BacklogOptions{})
		require.NoError(t, err)
		assert.Equal(t, n+1, backlog[0].InProgress.N+backlog[0].Stale.N, "each is seen")
		close(goOn)
		a.hurry()
		rig.Eventually(b, "all are handled", func() bool { return b.rows() == 0 })
		for _, msg := range a.suspects {
			assert.Equal(t, 1, a.runs.of(msg))
			assert.Len(t, rig.Story(t, b.store, msg.UUID).History, 1, "that its process did not answer")
		}
	})},
	{Name: "in time, but returns in the end", Why: "the next wait is longer, so the message is delivered alone at last", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		var log rig.Lines
		a, logger := newAlone(b, 1), watermill.NewSlogLogger(slog.New(slog.NewTextHandler(&log, nil)))
		durable := storeFirst(rig.NewStore(b, b.db.Open(b).DB, inbox.Config{WithoutPlugin: true, Logger: logger}))
		durable.Lease = 10 * time.Second // which is also how long a message waits to be alone
		entered, goOn := make(chan struct{}), map[string]chan struct{}{}
		slow := newMessages(2)
		for _, msg := range slow {
			goOn[msg.UUID] = make(chan struct{})
		}
		a.service = b.start(durable, silent(func(msg *message.Message) error {
			if end := goOn[msg.UUID]; end != nil && a.runs.run(msg) == 1 {
				entered <- struct{}{}
				<-end
			}
			return nil
		}))
		waited := func() (all []string) {
			for _, field := range regexp.MustCompile(`waited=(\S+)`).FindAllStringSubmatch(log.String(), -1) {
				all = append(all, field[1])
			}
			return all
		}
		for i, msg := range slow {
			assert.True(t, a.deliver(msg))
			rig.Within(t, entered, "the handler has it")
			if i == 0 {
				a.abandon()
			} else {
				close(goOn[slow[0].UUID])
			}
			rig.Eventually(b, "its time is over", func() bool { return len(waited()) > i })
		}
		close(goOn[slow[1].UUID])
		rig.Eventually(b, "all are handled", func() bool { return b.rows() == 0 })
		assert.Equal(t, []string{durable.Lease.String(), (2 * durable.Lease).String()}, waited())
	})},
	{Name: "at the message that is delivered alone", Why: "the others go on beside it", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		a := newAlone(b, 1)
		entered, goOn := a.start(a.suspects[0])
		a.abandon()
		rig.Within(t, entered, "the handler has it")
		a.goesOn()
		assert.Equal(t, 1, a.events.Said("a handler has had a stored message for too long"))
		close(goOn)
		rig.Eventually(b, "all are handled", func() bool { return b.rows() == 0 })
		assert.Equal(t, 1, a.runs.of(a.suspects[0]))
	})},
}

// alone is a service beside a process that dies with messages in hand.
type alone struct {
	*service
	suspects []*message.Message
	events   rig.Events
	runs     counter
}

// newAlone has a process take n messages.
func newAlone(b *bed, n int) *alone {
	b.Helper()
	a := &alone{suspects: newMessages(n)}
	queue := b.storeIn(inbox.QueueConfig{Lease: time.Hour}, a.suspects...)
	ours, err := queue.HandOut(b.Context(), b.takes(queue, n)...)
	require.NoError(b, err)
	require.Len(b, ours, n)
	a.service = &service{bed: b}
	return a
}

// start runs a handler that does not return from its first run of a message before goOn is closed.
func (a *alone) start(hangs *message.Message) (entered <-chan struct{}, goOn chan struct{}) {
	a.Helper()
	in, goOn := make(chan struct{}), make(chan struct{})
	store := rig.NewStore(a, a.db.Open(a).DB, inbox.Config{WithoutPlugin: true, Logger: &a.events})
	durable := storeFirst(store)
	durable.Lease = 10 * time.Second // a machine under load renews it seconds late
	a.service = a.bed.start(durable, silent(func(msg *message.Message) error {
		if n := a.runs.run(msg); msg.UUID == hangs.UUID && n == 1 {
			close(in)
			<-goOn
		}
		assert.Equal(a, 1, inbox.Attempt(msg.Context()))
		return nil
	}))
	return in, goOn
}

// abandon has the leases of the other process lapse.
func (a *alone) abandon() {
	a.Helper()
	a.db.Do(a, `UPDATE millrace_messages SET due_at = 1 WHERE due_at > ?`, time.Now().Add(time.Hour/2).UnixMicro())
}

// hurry has what was put back be due at once.
func (a *alone) hurry() {
	a.Helper()
	a.db.Do(a, `UPDATE millrace_messages SET due_at = 1 WHERE lease_token = 0`)
}

// goesOn delivers another message, and waits until it is handled.
func (a *alone) goesOn() {
	a.Helper()
	msg := newMessage()
	assert.True(a, a.deliver(msg))
	rig.Eventually(a, "it is handled", func() bool {
		return a.count(`SELECT COUNT(*) FROM millrace_messages WHERE uuid = ?`, []byte(msg.UUID)) == 0
	})
	assert.Equal(a, 1, a.runs.of(msg))
}
