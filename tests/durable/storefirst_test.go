package durable_test

import (
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestAHandlerThatCommitsAndFailsHasAllItsAttempts: the inbox takes its claim back, and the queue counts the attempt.
func TestAHandlerThatCommitsAndFailsHasAllItsAttempts(t *testing.T) {
	t.Parallel()
	testdb.Each(t, inBothModes(func(t *testing.T, b *bed, mode pubsub.Mode) {
		durable := quick(b.store)
		durable.Mode, durable.MaxAttempts = mode, 4
		var ran atomic.Int32
		s := b.inboxed(durable, func(msg *message.Message) error {
			ran.Add(1)
			tx, err := inbox.Tx(msg.Context())
			if err == nil {
				err = tx.Commit()
			}
			return errors.Join(errBoom, err)
		})
		parked := s.parks(newMessage())
		assert.Equal(t, 4, parked.Attempts)
		assert.Equal(t, int32(4), ran.Load())
	}))
}

// TestWhatTheHandlerCommittedAndFailedIsNotLost: between its commit and its failure the message looks handled. Its row stays
// as long as the lease does; if the lease lapses and another process closes the row, the message is handled. SQLite lets no
// handler commit.
func TestWhatTheHandlerCommittedAndFailedIsNotLost(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{"postgres", "mysql"} {
		for mode, name := range modes {
			play := func(t *testing.T, afterCommit func(b *bed, other *inbox.Store)) *service {
				b := newBed(t, testdb.On(t, dialect))
				other := b.process()
				durable := quick(b.store)
				durable.Mode, durable.MaxAttempts = mode, 4
				var ran atomic.Int32
				return b.inboxed(durable, func(msg *message.Message) error {
					if ran.Add(1) == 1 {
						return errBoom // so that there is a row
					}
					tx, err := inbox.Tx(msg.Context())
					if err == nil {
						err = tx.Commit()
					}
					if assert.NoError(t, err) {
						afterCommit(b, other)
					}
					return errBoom
				})
			}
			t.Run("the janitor/"+dialect+"/"+name, func(t *testing.T) {
				s := play(t, func(_ *bed, other *inbox.Store) { rig.Purge(t, other) })
				assert.Equal(t, 4, s.parks(newMessage()).Attempts)
			})
			t.Run("another process/"+dialect+"/"+name, func(t *testing.T) {
				closed := make(chan bool)
				s := play(t, func(b *bed, other *inbox.Store) {
					defer close(closed)
					queue := rig.Queue(t, other, inbox.QueueConfig{Consumer: consumer})
					rig.Eventually(t, "it is found handled", func() bool {
						b.db.Do(t, `UPDATE millrace_messages SET due_at = 1`) // the lease lapses, and may just have been extended
						return len(rig.Take(t, queue, 10)) == 0 && b.rows() == 0
					})
				})
				assert.True(t, s.deliver(newMessage()))
				<-closed
				require.NoError(t, s.router.Close())
				assert.Equal(t, 1, s.count(`SELECT COUNT(*) FROM millrace_claims WHERE result <> 0`), "it counts as handled")
				assert.Zero(t, s.rows())
			})
		}
	}
}

// TestAMessageLargerThanThePacketStopsNoOther: MariaDB cuts the connection of who sends more than 16 MiB, which looks as if the
// database were away, unless the server gets to say why before, which is chance.
func TestAMessageLargerThanThePacketStopsNoOther(t *testing.T) {
	t.Parallel()
	for mode, name := range modes {
		t.Run(name, func(t *testing.T) {
			b, events := newBed(t, testdb.On(t, "mysql")), &rig.Events{}
			pool := faults.Open(t, b.db)
			durable := quick(rig.NewStore(t, pool.DB, inbox.Config{WithoutPlugin: true, Observers: []inbox.Observer{events}}))
			durable.Mode, durable.Redelivered = mode, func(*message.Message) bool { return true } // it is stored, in both modes
			if mode == pubsub.StoreFirst {
				durable.OrderKey = func(*message.Message) (string, error) { return "one", nil }
			}
			s, large := b.inboxed(durable, effect), newMessage()
			large.Payload = make([]byte, b.count(`SELECT @@max_allowed_packet`)+1<<20)
			pool.Set(faults.Plan{Before: faults.Lose("INSERT INTO millrace_messages")})
			s.source.Send(t, large)
			assert.False(t, rig.Answer(t, large), "its source keeps it")
			pool.Set(faults.Plan{})
			s.handles(newMessage())
			assert.Zero(t, events.Count("outage"))
		})
	}
	t.Run("a driver that puts it into the text of the statement", func(t *testing.T) {
		b, events := newBed(t, testdb.On(t, "mysql")), &rig.Events{}
		pool := b.db.Open(t, testdb.Params("interpolateParams", "true"))
		durable := quick(rig.NewStore(t, pool.DB, inbox.Config{WithoutPlugin: true, Observers: []inbox.Observer{events}}))
		durable.Mode, durable.OrderKey = pubsub.StoreFirst, func(*message.Message) (string, error) { return "one", nil }
		s, large := b.inboxed(durable, effect), newMessage()
		large.Payload = make([]byte, b.count(`SELECT @@max_allowed_packet`)/10*6) // zeros are escaped
		s.source.Send(t, large)
		assert.False(t, rig.Answer(t, large), "its source keeps it")
		s.handles(newMessage())
		assert.Zero(t, events.Count("outage"))
	})
	for name, conns := range map[string]int{"a collision, without a queue": 0, "a collision, without a queue and with a pool of one": 1} {
		t.Run(name, func(t *testing.T) {
			b, events := newBed(t, testdb.On(t, "mysql")), &rig.Events{}
			pool := faults.Open(t, b.db)
			pool.DB.SetMaxOpenConns(conns)
			store := rig.NewStore(t, pool.DB, inbox.Config{WithoutPlugin: true, Observers: []inbox.Observer{events}})
			h, msg := millrace.Inbox{Store: store, Consumer: consumer}.Middleware(silent(effect)), newMessage()
			require.NoError(t, do(h, msg.Copy()))
			large := another(msg)
			large.Payload = make([]byte, b.count(`SELECT @@max_allowed_packet`)+1<<20)
			pool.Set(faults.Plan{Before: faults.Lose("INSERT INTO millrace_messages")})
			require.ErrorContains(t, do(h, large), "max_allowed_packet")
			assert.Zero(t, events.Count("outage"))
			pool.Set(faults.Plan{})
			require.NoError(t, do(h, newMessage()))
		})
	}
	t.Run("a collision that goes into a blob, without a queue", func(t *testing.T) {
		b, events := newBed(t, testdb.On(t, "mysql")), &rig.Events{}
		pool := faults.Open(t, b.db)
		store := rig.NewStore(t, pool.DB, inbox.Config{WithoutPlugin: true, BlobsAbove: 1 << 10, Observers: []inbox.Observer{events}})
		h, msg := millrace.Inbox{Store: store, Consumer: consumer}.Middleware(silent(effect)), newMessage()
		require.NoError(t, do(h, msg.Copy()))
		large := another(msg)
		large.Payload = make([]byte, b.count(`SELECT @@max_allowed_packet`)+1<<20)
		pool.Set(faults.Plan{Before: faults.Lose("INSERT INTO millrace_blobs")})
		require.ErrorContains(t, do(h, large), "max_allowed_packet")
		assert.Zero(t, events.Count("outage"))
	})
	t.Run("parked by the gate, without a queue", func(t *testing.T) {
		b := newBed(t, testdb.On(t, "mysql"))
		pool := faults.Open(t, b.db)
		store := rig.NewStore(t, pool.DB, inbox.Config{WithoutPlugin: true})
		h := millrace.Inbox{Store: store, Consumer: consumer}.Middleware(millrace.VersionGate{}.Middleware(silent(effect)))
		require.NoError(t, do(h, stamped("a", 1)))
		large := stamped("a", 1)
		large.Payload = make([]byte, b.count(`SELECT @@max_allowed_packet`)+1<<20)
		pool.Set(faults.Plan{Before: faults.Lose("INSERT INTO millrace_messages")})
		shortest := time.Hour
		for range 4 {
			began := time.Now()
			require.ErrorContains(t, do(h, large), "max_allowed_packet")
			shortest = min(shortest, time.Since(began))
		}
		assert.GreaterOrEqual(t, shortest, 50*time.Millisecond, "its source redelivers it at once")
	})
}

// storeFirstBodies: a message is committed to the table before it is delivered.
var storeFirstBodies = []testdb.Body{
	{Name: "OnParked changes while a message is parked", Why: "what it says counts from then on, for what is stored already", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		var mended atomic.Bool
		var mu sync.Mutex
		var order []string
		serve := func(onParked inbox.OnParked) *service {
			durable := quick(b.process())
			durable.Mode, durable.MaxAttempts, durable.OnParked = pubsub.StoreFirst, 1, onParked
			durable.OrderKey = func(*message.Message) (string, error) { return "one", nil }
			return b.inboxed(durable, func(msg *message.Message) error {
				if isBad(msg) && !mended.Load() {
					return errBoom
				}
				mu.Lock()
				defer mu.Unlock()
				order = append(order, string(msg.Payload))
				return nil
			})
		}
		handled := func() []string {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(order)
		}
		send := func(s *service, payload string) {
			msg := newMessage()
			msg.Payload = []byte(payload)
			assert.True(t, s.deliver(msg))
		}
		s := serve(inbox.HoldKey)
		assert.True(t, s.deliver(newBad("first")))
		send(s, "second")
		rig.Eventually(b, "the first is parked", func() bool { return b.open(admin.Parked) == 1 })
		require.NoError(t, s.router.Close())
		assert.Empty(t, handled(), "its key waits")

		s = serve(inbox.Continue)
		send(s, "third")
		rig.Eventually(b, "the others go on", func() bool { return len(handled()) == 2 })
		require.NoError(t, s.router.Close())

		s = serve(inbox.HoldKey)
		send(s, "fourth")
		mended.Store(true)
		found := b.only(b.store, admin.Parked)
		require.NoError(t, admin.New(b.store).Retry(t.Context(), found.ID, ada, nil))
		rig.Eventually(b, "all are handled", func() bool { return b.rows() == 0 })
		assert.Equal(t, []string{"second", "third", "first", "fourth"}, handled())
	})},
	{Name: "stored first", Why: "row committed, acked, then delivered from the table", Run: func(t *testing.T, db *testdb.DB) {
		b, runs, hold := newBed(t, db), &counter{}, make(chan struct{})
		s := b.inboxed(storeFirst(b.store), func(msg *message.Message) error {
			runs.run(msg)
			<-hold
			assert.Equal(t, "blue", msg.Metadata.Get("colour"))
			return effect(msg)
		})
		msg := newMessage()
		assert.True(t, s.deliver(msg), "before the handler is done")
		assert.Equal(t, 1, b.rows())
		if db.Dialect != "sqlite" { // there the handler's transaction stops the intake
			assert.True(t, s.deliver(msg), "a copy is not stored twice")
			assert.Equal(t, 1, b.rows())
		}
		close(hold)
		rig.Eventually(b, "it is handled", func() bool { return b.effects(msg) == 1 && b.rows() == 0 })
		assert.True(t, s.deliver(msg), "a late copy")
		rig.Eventually(b, "the copy is closed", func() bool { return b.rows() == 0 })
		assert.Equal(t, 1, runs.of(msg))
		assert.Equal(t, 1, b.effects(msg))
	}},
	{Name: "stored first, without Inbox", Why: "completed on ack; a later copy is known", Run: func(t *testing.T, db *testdb.DB) {
		b, runs := newBed(t, db), &counter{}
		s := b.start(storeFirst(b.store), func(msg *message.Message) ([]*message.Message, error) {
			if runs.run(msg) == 1 {
				return nil, errBoom
			}
			return nil, nil
		})
		msg := newMessage()
		assert.True(t, s.deliver(msg))
		rig.Eventually(b, "it is handled", func() bool { return runs.of(msg) == 2 && b.rows() == 0 })
		assert.True(t, s.deliver(msg))
		rig.Eventually(b, "the copy is closed", func() bool { return b.rows() == 0 })
		assert.Equal(t, 2, runs.of(msg))
	}},
	{Name: "the same key with another payload", Why: "the newcomer is parked, not dropped", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		s := b.inboxed(storeFirst(b.store), func(*message.Message) error { return inbox.RetryAfter(errBoom, time.Hour) })
		msg := newMessage()
		assert.True(t, s.deliver(msg))
		for range 2 {
			assert.True(t, s.deliver(message.NewMessage(msg.UUID, []byte("another"))))
		}
		parked := b.only(b.store, admin.Parked)
		rig.Eventually(b, "the first waits", func() bool { return b.open(admin.FailedRetryable) == 1 })
		require.NoError(t, admin.New(b.store).Discard(t.Context(), parked.ID, ada))
	})},
	{Name: "a message that cannot be stored, where retries are far apart", Why: "the others go on after a moment, not after MinBackoff", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		durable := storeFirst(b.store)
		durable.MinBackoff, durable.MaxBackoff = time.Hour, time.Hour
		durable.Key = inbox.ByFunc("asks", func(msg *message.Message) (string, error) {
			if isBad(msg) {
				return "", inbox.ErrUnavailable
			}
			return msg.UUID, nil
		})
		s, unknown := b.inboxed(durable, effect), newBad("unknown")
		s.source.Send(t, unknown)
		s.handles(newMessage())
		assert.False(t, rig.Answer(t, unknown), "its source keeps it")
	})},
	{Name: "rows left over", Why: "a restart works them off though the source is silent", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		left := newMessages(250)
		b.storeIn(inbox.QueueConfig{}, left...)
		b.storeIn(inbox.QueueConfig{}, left...)
		assert.Equal(t, 250, b.rows())
		b.inboxed(storeFirst(b.store), effect)
		rig.Eventually(b, "all are handled", func() bool { return b.rows() == 0 })
		assert.Equal(t, 250, b.count(`SELECT COUNT(*) FROM effects`))
	})},
	{Name: "the order of arrival", Why: "what is stored together comes out as it arrived: a version gate behind the queue would hold all that comes early", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		const batch, take = 100, 40
		queue := rig.Queue(t, b.store, inbox.QueueConfig{Consumer: consumer})
		var arrived, found, came []string
		for range 2 {
			msgs := newMessages(batch)
			arrived = append(arrived, uuids(msgs)...)
			require.NoError(t, queue.Put(t.Context(), "orders", append(msgs, msgs[0].Copy())...), "and a copy")
		}
		for _, m := range rig.Find(t, b.store, admin.Filter{}) {
			found = append(found, m.UUID)
		}
		assert.Equal(t, arrived[:len(found)], found, "as an operator sees them")
		for leased := rig.Take(t, queue, take); len(leased) > 0; leased = rig.Take(t, queue, take) {
			for _, l := range leased {
				came = append(came, b.uuid(l))
			}
		}
		assert.Equal(t, arrived, came)
	})},
	{Name: "the same messages in another order", Why: "processes that store them wait for each other, and end", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		there := newMessages(100)
		var back []*message.Message
		for _, msg := range slices.Backward(there) {
			back = append(back, msg.Copy())
		}
		events := &rig.Events{}
		var queues []*inbox.Queue
		for range 2 {
			store := rig.NewStore(b, b.db.Open(b).DB, inbox.Config{Observers: []inbox.Observer{events}})
			queues = append(queues, rig.Queue(t, store, inbox.QueueConfig{Consumer: consumer}))
			require.NoError(t, queues[len(queues)-1].Put(t.Context(), "orders", newMessage()), "it is connected")
		}
		var both sync.WaitGroup
		for i, msgs := range [][]*message.Message{there, back} {
			both.Go(func() { assert.NoError(t, queues[i].Put(t.Context(), "orders", msgs...)) })
		}
		both.Wait() // PostgreSQL looks for a deadlock after a second of waiting
		assert.LessOrEqual(t, events.Count("contention"), 2, "each divides what it stores at most once")
		assert.Equal(t, 2+len(there), b.rows())
	})},
	{Name: "order by key", Why: "a failed head holds back its own key only", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		var mu sync.Mutex
		handled := map[string][]string{}
		durable := storeFirst(b.store)
		durable.MaxAttempts = math.MaxInt32 // a0 fails until b is done
		durable.OrderKey = func(msg *message.Message) (string, error) { return msg.Metadata.Get("key"), nil }
		failing := map[string]bool{"a0": true}
		s := b.inboxed(durable, func(msg *message.Message) error {
			mu.Lock()
			defer mu.Unlock()
			if failing[msg.UUID] {
				return errBoom
			}
			handled[msg.Metadata.Get("key")] = append(handled[msg.Metadata.Get("key")], msg.UUID)
			return effect(msg)
		})
		for _, n := range []string{"0", "1", "2", "3"} {
			for _, key := range []string{"a", "b"} {
				msg := message.NewMessage(key+n, nil)
				msg.Metadata.Set("key", key)
				assert.True(t, s.deliver(msg))
			}
		}
		seen := func(key string) []string {
			mu.Lock()
			defer mu.Unlock()
			return append([]string{}, handled[key]...)
		}
		rig.Eventually(b, "b is done", func() bool { return len(seen("b")) == 4 })
		assert.Empty(t, seen("a"))
		mu.Lock()
		failing["a0"] = false
		mu.Unlock()
		rig.Eventually(b, "a is done", func() bool { return len(seen("a")) == 4 && b.rows() == 0 })
		assert.Equal(t, []string{"a0", "a1", "a2", "a3"}, seen("a"))
		assert.Equal(t, []string{"b0", "b1", "b2", "b3"}, seen("b"))
	})},
}
