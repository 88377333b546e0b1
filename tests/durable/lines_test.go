package durable_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestManyStandInLine: more messages wait behind others of their order key than a look reads.
func TestManyStandInLine(t *testing.T) {
	testdb.Conformance(t, lineBodies)
}

// longLine is more messages than a look reads in the order in which they are due.
const longLine = 260

func (b *bed) inLine(store *inbox.Store, onParked inbox.OnParked) *inbox.Queue {
	b.Helper()
	return rig.Queue(b, store, inbox.QueueConfig{
		Consumer: consumer, OnParked: onParked, MaxAttempts: 1000, MinBackoff: time.Microsecond, MaxBackoff: time.Millisecond,
		OrderKey: func(msg *message.Message) (string, error) { return msg.Metadata.Get("key"), nil },
	})
}

// stands returns a message of a key, whose UUID says its place.
func stands(key string, place int) *message.Message {
	msg := message.NewMessage(fmt.Sprintf("%s/%d", key, place), []byte("payload"))
	msg.Metadata.Set("key", key)
	return msg
}

// had takes what there is, and returns it with the UUIDs.
func (b *bed) had(q *inbox.Queue) (taken []*inbox.Leased, uuids []string) {
	b.Helper()
	taken = rig.Take(b, q, 10)
	for _, l := range taken {
		uuids = append(uuids, b.uuid(l))
	}
	return taken, uuids
}

func (b *bed) uuid(l *inbox.Leased) string {
	b.Helper()
	msg, err := l.Message(b.Context())
	require.NoError(b, err)
	return msg.UUID
}

var lineBodies = []testdb.Body{
	{Name: "a line that waits for an operator", Why: "it holds back its own key only", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		q := b.inLine(b.store, inbox.HoldKey)
		b.leave(longLine, func(n int) *message.Message { return stands("a", n) })
		first, uuids := b.had(q)
		require.Equal(t, []string{"a/0"}, uuids)
		b.db.Do(t, `UPDATE millrace_messages SET status = 6, lease_token = 0 WHERE uuid = ?`, []byte("a/0"))
		require.ErrorIs(t, first[0].Finish(t.Context()), inbox.ErrLost)
		require.NoError(t, q.Put(t.Context(), "orders", stands("b", 0), stands("b", 1), stands("", 0)))
		var taken []*inbox.Leased
		rig.Eventually(b, "what is behind nobody is had", func() bool {
			more, of := b.had(q)
			taken, uuids = append(taken, more...), append(uuids, of...)
			return len(uuids) == 3
		})
		assert.ElementsMatch(t, []string{"a/0", "b/0", "/0"}, uuids)
		_, uuids = b.had(q)
		assert.Empty(t, uuids, "the next of b waits")
		require.NoError(t, q.Finish(t.Context(), taken...))
		_, uuids = b.had(b.inLine(b.process(), inbox.HoldKey))
		assert.Equal(t, []string{"b/1"}, uuids)
		_, uuids = b.had(b.inLine(b.process(), inbox.Continue))
		assert.Equal(t, []string{"a/1"}, uuids)
	})},
	{Name: "a line behind a message whose time has not come", Why: "it waits, whatever is due in it, and the others do not", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		q := rig.Queue(t, b.store, inbox.QueueConfig{
			Consumer: consumer,
			OrderKey: func(msg *message.Message) (string, error) { return msg.Metadata.Get("key"), nil },
			NotBefore: func(msg *message.Message) time.Time {
				return time.Now().Add(time.Duration(len(msg.Metadata["hours"])) * time.Hour)
			},
		})
		later := stands("a", 0)
		later.Metadata.Set("hours", "twenty-four")
		require.NoError(t, q.Put(t.Context(), "orders", later, stands("a", 1), stands("b", 0)))
		var uuids []string
		rig.Eventually(b, "the other line is had", func() bool {
			_, uuids = b.had(q)
			return len(uuids) > 0
		})
		assert.Equal(t, []string{"b/0"}, uuids)
		_, uuids = b.had(q)
		assert.Empty(t, uuids)
		b.db.Do(t, `UPDATE millrace_messages SET due_at = 1 WHERE uuid = ?`, []byte(later.UUID))
		_, uuids = b.had(q)
		assert.Equal(t, []string{"a/0"}, uuids)
	})},
	{Name: "a line behind what failed", Why: "with Continue it goes on, whether that was parked or failed terminally", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		q := b.inLine(b.store, inbox.Continue)
		place := 0
		for _, length := range []int{3, longLine} { // found among what is due soonest, and by its key
			b.leave(length, func(n int) *message.Message { return stands(fmt.Sprint("a", length), n) })
			for _, failed := range []admin.Status{admin.FailedTerminal, admin.Parked} {
				taken, uuids := b.had(q)
				require.Equal(t, []string{fmt.Sprintf("a%d/%d", length, place)}, uuids)
				b.db.Do(t, `UPDATE millrace_messages SET status = ?, lease_token = 0 WHERE uuid = ?`, failed, []byte(uuids[0]))
				require.ErrorIs(t, taken[0].Finish(t.Context()), inbox.ErrLost)
				_, uuids = b.had(b.inLine(b.process(), inbox.HoldKey))
				require.Empty(t, uuids)
				place++
			}
			taken, uuids := b.had(q)
			assert.Equal(t, []string{fmt.Sprintf("a%d/%d", length, place)}, uuids)
			require.NoError(t, q.Finish(t.Context(), taken...)) // else its lease may end below
			place = 0
		}
	})},
	{Name: "a message in a line that is kept because its NotBefore panicked", Why: "it leaves the line: nobody has tried it", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		bad, good := newMessage(), newMessage()
		b.takes(b.storeIn(inbox.QueueConfig{
			OrderKey:  func(*message.Message) (string, error) { return "a", nil },
			NotBefore: func(msg *message.Message) time.Time { trip(msg.UUID == bad.UUID); return time.Time{} },
		}, bad, good), 1)
	})},
	{Name: "a line whose queue has no OrderKey any more", Why: "it stays in order, and a look is as short as before", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.leave(longLine, func(n int) *message.Message { return stands("a", n) })
		pool := faults.Open(t, b.db)
		reads := dialect.For(b.db.Dialect, dialect.Names{Prefix: dialect.DefaultPrefix}).Queue.SelectDue
		pool.Set(faults.Plan{Before: func(_ context.Context, call string) error {
			if call == reads {
				return errors.New("it reads what stands in the line")
			}
			return nil
		}})
		q := rig.Queue(t, rig.NewStore(t, pool.DB, inbox.Config{}), inbox.QueueConfig{Consumer: consumer})
		for n := range 3 {
			taken, uuids := b.had(q)
			require.Equal(t, []string{fmt.Sprint("a/", n)}, uuids)
			require.NoError(t, q.Finish(t.Context(), taken...))
		}
	})},
	{Name: "more lines than a look goes through", Why: "each has its turn", Run: func(t *testing.T, db *testdb.DB) {
		const keys = 1300
		b := newBed(t, db)
		q := b.inLine(b.store, inbox.HoldKey)
		for _, place := range []int{0, 1} {
			var all []*message.Message
			for n := range keys {
				all = append(all, stands(fmt.Sprintf("%04d", n), place))
			}
			require.NoError(t, q.Put(t.Context(), "orders", all...))
		}
		last := b.count(`SELECT MIN(id) FROM millrace_messages`) + keys - 1
		db.Do(t, `UPDATE millrace_messages SET status = 4, due_at = due_at + ? WHERE id < ?`, time.Hour.Microseconds(), last)
		db.Do(t, `UPDATE millrace_messages SET due_at = 1 WHERE id > ?`, last)
		_, uuids := b.had(q)
		for range 2 { // to the end, and around
			if len(uuids) == 0 {
				_, uuids = b.had(q)
			}
		}
		assert.Equal(t, []string{"1299/0"}, uuids)
		_, uuids = b.had(q)
		assert.Empty(t, uuids)
	}},
	{Name: "a line behind many that are held", Why: "its first is had, and a look is short", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		q := b.inLine(b.store, inbox.HoldKey)
		b.leave(1, func(int) *message.Message { return stands("a", 0) })
		held := testdb.Rounds(2_000, 200_000)
		b.lengthen(held)
		b.db.Do(t, `UPDATE millrace_messages SET status = 7, due_at = due_at + 3600000000`)
		require.NoError(t, q.Put(t.Context(), "orders", stands("b", 0)))
		b.leave(longLine, func(n int) *message.Message { return stands("a", n+1) })
		began := time.Now()
		taken, uuids := b.had(q)
		assert.ElementsMatch(t, []string{"a/1", "b/0"}, uuids)
		assert.Less(t, time.Since(began), time.Minute)
		require.NoError(t, q.Finish(t.Context(), taken...))
		began = time.Now()
		_, uuids = b.had(q)
		assert.Equal(t, []string{"a/2"}, uuids)
		assert.Less(t, time.Since(began), time.Minute)
		t.Logf("a look behind %d that are held took %v", held, time.Since(began))
	})},
	{Name: "several processes that fail, put back and finish", Why: "one of a key at a time, in the order of arrival", Run: func(t *testing.T, db *testdb.DB) {
		const processes, short = 3, 20
		long := testdb.Rounds(60, longLine)
		b := newBed(t, db)
		b.leave(long+short, func(n int) *message.Message { return stands(strconv.Itoa(n/long), n%long) })
		w := &walkers{bed: b, busy: map[string]bool{}, next: map[string]int{}}
		var all sync.WaitGroup
		for n := range processes {
			q := b.inLine(b.process(), inbox.HoldKey)
			all.Go(func() { w.walk(q, rand.New(rand.NewPCG(1, uint64(n)))) }) //nolint:gosec // repeats itself
		}
		all.Wait()
		assert.Zero(t, b.rows())
		assert.Equal(t, map[string]int{"0": long, "1": short}, w.next)
	}},
}

// lengthen makes of the only message that is stored so many, of its order key.
func (b *bed) lengthen(n int) {
	b.Helper()
	text := map[string]string{
		"postgres": "convert_to((%s)::text, 'UTF8')", "mysql": "CAST(%s AS CHAR)", "sqlite": "CAST(%s AS BLOB)",
	}[b.db.Dialect]
	b.db.Do(b, fmt.Sprintf(`
		INSERT INTO millrace_messages (consumer, message_id, status, topic, order_key, uuid, metadata, payload, payload_hash,
			received_at, due_at)
		WITH RECURSIVE n (j) AS (SELECT 0 UNION ALL SELECT j + 1 FROM n WHERE j < 499)
		SELECT m.consumer, %s, m.status, m.topic, m.order_key, m.uuid, m.metadata, m.payload, m.payload_hash, m.received_at, m.due_at
		FROM millrace_messages m
		CROSS JOIN (SELECT a.j * 500 + b.j AS i FROM n a CROSS JOIN n b WHERE a.j * 500 + b.j < %d ORDER BY 1) numbers`,
		fmt.Sprintf(text, "i"), n-1))
}

// walkers take messages and do something with them until there are none.
type walkers struct {
	*bed
	mu   sync.Mutex
	busy map[string]bool // order keys of which somebody has a message
	next map[string]int  // and the place of the one to come
}

func (w *walkers) walk(q *inbox.Queue, dice *rand.Rand) {
	for w.rows() > 0 && !w.Failed() {
		taken, next, err := q.Take(w.Context(), 1+dice.IntN(3), time.Second)
		if !assert.NoError(w, err) {
			return
		}
		if len(taken) == 0 {
			<-time.After(min(next, 20*time.Millisecond))
		}
		for _, l := range taken {
			w.handle(q, l, dice)
		}
	}
}

func (w *walkers) handle(q *inbox.Queue, l *inbox.Leased, dice *rand.Rand) {
	key, at, _ := strings.Cut(w.uuid(l), "/")
	place, _ := strconv.Atoi(at)
	if dice.IntN(10) == 0 {
		assert.NoError(w, q.PutBack(w.Context(), l))
		return
	}
	ours, err := q.HandOut(w.Context(), l)
	assert.NoError(w, err)
	assert.Len(w, ours, 1)
	w.begin(key, place)
	end := l.Finish
	if dice.IntN(10) == 0 {
		end = l.Fail
	}
	w.end(key, place, end)
}

func (w *walkers) begin(key string, place int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	assert.False(w, w.busy[key], "%s/%d beside another one of its key", key, place)
	assert.Equal(w, w.next[key], place, "of key %s", key)
	w.busy[key] = true
}

func (w *walkers) end(key string, place int, end func(context.Context) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy[key] = false
	before := w.rows()
	assert.NoError(w, end(w.Context()))
	if w.rows() < before {
		w.next[key] = place + 1
	}
}
