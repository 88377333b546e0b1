package tests_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

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

const day = 24 * time.Hour

func longAgo(*message.Message) (time.Time, bool) { return time.Now().Add(-30 * day), true }

func madeAt(age time.Duration) func(*message.Message) (time.Time, bool) {
	return func(*message.Message) (time.Time, bool) { return time.Now().Add(-age), true }
}

// retentionBodies: what is forgotten, and what that means.
var retentionBodies = []testdb.Body{
	{Name: "redelivery after the retention, with a time", Why: "what cannot be judged is parked, not handled twice", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage("x")
		old := func(i *millrace.Inbox) { i.MessageTime = madeAt(9 * day) }
		must(t, b.inbox(effect, old), again(msg))
		b.age(8 * day)
		b.purge(1)
		must(t, b.inbox(effect, old, on(b.process())), again(msg))
		assert.Equal(t, 1, b.effects())
		parked := rig.Parked(t, b.store)
		require.Len(t, parked, 1)
		assert.Contains(t, parked[0].Reason, "too old")
	})},
	{Name: "redelivery after the retention, without a time", Why: "the guarantee holds within the retention, and no longer", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage("x")
		must(t, b.inbox(effect), again(msg))
		b.age(8 * day)
		b.purge(1)
		must(t, b.inbox(effect, on(b.process())), again(msg))
		assert.Equal(t, 2, b.effects())
	})},
	{Name: "redelivery after the retention, made centuries ago", Why: "no time is too far away to be judged; the zero time is none", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		times := map[string]string{
			"1733": "1733-06-01T00:00:00Z", "year one": "0001-01-01T00:00:01Z", "before it": "0001-01-01T00:00:00+01:00",
			"none": "0001-01-01T00:00:00Z", "none, but published": "0001-01-01T00:00:00Z",
		}
		deliver := func(store *inbox.Store) {
			for id, made := range times {
				msg := message.NewMessage(id, nil)
				msg.Metadata.Set("ce_time", made)
				if strings.HasSuffix(id, "published") {
					msg.Metadata.Set("publishTime", time.Now().Add(-9*day).Format(time.RFC3339Nano))
				}
				must(t, b.inbox(effect, on(store)), msg)
			}
		}
		deliver(b.store)
		b.age(8 * day)
		b.purge(len(times))
		deliver(b.process())
		for id := range times {
			runs := 1
			if id == "none" {
				runs = 2
			}
			assert.Equal(t, runs, b.effectsOf(id), id)
		}
		assert.Len(t, rig.Parked(t, b.store), len(times)-1)
	})},
	{Name: "an old message of a consumer that forgot nothing", Why: "only what may have been deleted is doubted", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		must(t, b.inbox(effect, func(i *millrace.Inbox) { i.MessageTime = longAgo }), newMessage("x"))
		assert.Equal(t, 1, b.effects())
	})},
	{Name: "a message younger than the purge line", Why: "first deliveries go on while old claims are purged", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		must(t, b.inbox(effect), newMessage("old"))
		b.age(8 * day)
		b.purge(1)
		must(t, b.inbox(effect, func(i *millrace.Inbox) { i.MessageTime = madeAt(2 * day) }), newMessage("x"))
		assert.Equal(t, 2, b.effects())
		skewed := func(i *millrace.Inbox) { i.MessageTime = madeAt(8*day - time.Minute) }
		must(t, b.inbox(effect, skewed), newMessage("x"))
		assert.Equal(t, 2, b.effects(), "a producer's clock may be ahead by ClockSkew")
	})},
	{Name: "a producer whose clock is ahead", Why: "the skew counts before a message is thought too young to judge", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage("x")
		hour := func(i *millrace.Inbox) { i.Retention, i.MessageTime = time.Hour, madeAt(57*time.Minute) }
		must(t, b.inbox(effect, hour), again(msg))
		b.age(61 * time.Minute)
		b.purge(1)
		must(t, b.inbox(effect, hour, on(b.process())), again(msg))
		assert.Equal(t, 1, b.effects())
		assert.Equal(t, 1, b.events.Count("parked"))
	})},
	{Name: "open rows of completed messages", Why: "the janitor closes them, and waits for no handler", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		shadowed, retried := newMessage("x"), newMessage("x")
		for _, msg := range []*message.Message{shadowed, retried} {
			rig.MustFail(t, b.inbox(alwaysFails, recorded), again(msg), errBoom)
		}
		b.exec(`UPDATE millrace_claims SET result = 1 WHERE message_id IN (SELECT message_id FROM millrace_messages WHERE uuid = ?)`,
			[]byte(shadowed.UUID))
		must(t, b.inbox(func(msg *message.Message) ([]*message.Message, error) {
			if b.db.Dialect != "sqlite" { // where a handler excludes the janitor
				ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
				defer cancel()
				if _, err := b.store.Purge(ctx); err != nil {
					return nil, err
				}
			}
			return effect(msg)
		}, recorded, func(i *millrace.Inbox) { i.Timeout = 2 * rig.Patience }), again(retried))
		b.purge(0)
		b.nothingOpen()
		assert.Equal(t, 1, b.effects())
	})},
	{Name: "a failure that a newer epoch has handled", Why: "the older one may run beside it, and handles it when it comes again", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		raised := func(i *millrace.Inbox) { i.RecordFailures, i.Epoch = true, 1 }
		msg := newMessage("x")
		rig.MustFail(t, b.inbox(alwaysFails, recorded), again(msg), errBoom)
		must(t, b.inbox(effect, raised), again(msg))
		assert.Equal(t, 1, b.effects())
		b.purge(0)
		must(t, b.inbox(effect, recorded, on(b.process())), again(msg))
		assert.Equal(t, 2, b.effects(), "each epoch has handled it")
		b.nothingOpen()
	})},
	{Name: "many open rows of completed messages", Why: "the janitor goes through them page by page, to the last", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		fill(t, b.db)
		b.exec(`DELETE FROM millrace_outcomes`)
		b.exec(`UPDATE millrace_claims SET result = 0 WHERE processed_at < 6000`)
		b.purge(0)
		assert.Equal(t, 5999, b.count(`SELECT COUNT(*) FROM millrace_messages`))
		assert.Zero(t, b.count(`SELECT COUNT(*) FROM millrace_messages WHERE received_at >= 6000`))
	})},
	{Name: "another message takes the key while the janitor closes a copy", Why: "I2: it was acked, and is not deleted", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		msg := newMessage("x")
		must(t, b.inbox(effect), again(msg))
		queue := rig.Queue(t, b.process(), inbox.QueueConfig{Consumer: "billing", StoreFirst: true})
		require.NoError(t, queue.Put(t.Context(), "orders", again(msg)))
		other := again(msg)
		other.Payload = []byte("another payload")
		pool, found := faults.Open(t, db), false
		pool.Set(faults.Plan{Before: func(ctx context.Context, call string) error {
			switch {
			case strings.Contains(call, "AS shadowed"):
				found = true
			case found && call == faults.Begin:
				found = false
				b.exec(`DELETE FROM millrace_messages`) // as a queue that takes the copy does
				return queue.Put(context.WithoutCancel(ctx), "orders", other)
			}
			return nil
		}})
		rig.Purge(t, b.newStore(pool.DB, inbox.Config{}))
		assert.Equal(t, 1, b.count(`SELECT COUNT(*) FROM millrace_messages`))
	}},
	{Name: "an archive that fails for one consumer", Why: "one consumer's trouble stops no other's purge", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		for _, consumer := range []string{"a", "b", "c"} {
			must(t, b.inbox(effect, func(i *millrace.Inbox) { i.Consumer = consumer }), newMessage("x"))
		}
		b.age(8 * day)
		b.exec(`CREATE TABLE archive (id VARCHAR(300))`)
		store := b.newStore(b.db.DB, inbox.Config{Archive: func(ctx context.Context, claims []inbox.ExpiredClaim) error {
			if claims[0].Consumer == "b" {
				return errBoom
			}
			return rig.Exec(ctx, `INSERT INTO archive (id) VALUES (?)`, claims[0].MessageID)
		}})
		n, err := store.Purge(t.Context())
		require.ErrorIs(t, err, errBoom)
		assert.Equal(t, 2, n)
		assert.Equal(t, 2, b.count(`SELECT COUNT(*) FROM archive`))
	})},
	{Name: "an archive that hangs", Why: "the queues of its consumer go on", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		if b.db.Dialect == "sqlite" { // has one writer, which is the archive
			return
		}
		must(t, b.inbox(effect), newMessage("x"))
		b.age(8 * day)
		busy, goOn := make(chan struct{}), make(chan struct{})
		store := b.newStore(b.db.DB, inbox.Config{Archive: func(context.Context, []inbox.ExpiredClaim) error {
			close(busy)
			<-goOn
			return nil
		}})
		purged := rig.Go(func() error { _, err := store.Purge(t.Context()); return err })
		rig.Within(t, busy, "nothing was archived")
		ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
		defer cancel()
		_, _, err := rig.Queue(t, b.process(), inbox.QueueConfig{Consumer: "billing"}).Take(ctx, 1, time.Second)
		assert.NoError(t, err)
		close(goOn)
		require.NoError(t, <-purged)
	})},
	{Name: "Close while the janitor is busy", Why: "it is bounded by its context, and safe to call twice", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		must(t, b.inbox(effect), newMessage("x"))
		b.age(8 * day)
		busy, goOn := make(chan struct{}), make(chan struct{})
		store := b.newStore(b.db.DB, inbox.Config{Archive: func(context.Context, []inbox.ExpiredClaim) error {
			close(busy)
			<-goOn
			return nil
		}})
		ended := rig.Go(func() error { return store.Run(t.Context()) })
		<-busy
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, store.Close(ctx), context.DeadlineExceeded)
		close(goOn)
		assert.Equal(t, 0, failures(2, func() error { return store.Close(t.Context()) }))
		require.NoError(t, <-ended)
		require.ErrorIs(t, store.Run(t.Context()), inbox.ErrClosed)
	})},
	{Name: "a new epoch has purged nothing", Why: "its messages are never too old", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage("x")
		b.forgotten(msg)
		must(t, b.inbox(effect, func(i *millrace.Inbox) { i.MessageTime = longAgo; i.Epoch = 1 }), again(msg))
		assert.Equal(t, 1, b.effects())
	})},
	{Name: "a released message is not judged again", Why: "a key with an open row is never too old", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage("x")
		b.forgotten(msg)
		s := b.oneHandler("orders", effect, millrace.Inbox{Store: b.store, Consumer: "billing", Options: inbox.Options{MessageTime: longAgo}}.Middleware)
		assert.True(t, s.deliver(again(msg)))
		parked := rig.Parked(t, b.store)
		require.Len(t, parked, 1)
		require.NoError(t, admin.New(b.store).Retry(t.Context(), parked[0].ID, operator, s.published))
		assert.True(t, s.deliver(again(s.published.Messages()[0])))
		assert.Equal(t, 1, b.effects())
		b.nothingOpen()
	})},
	{Name: "each consumer has its own retention", Why: "and Forever keeps all", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		for consumer, retention := range map[string]time.Duration{"short": time.Hour, "week": 0, "ever": inbox.Forever} {
			must(t, b.inbox(effect, func(i *millrace.Inbox) { i.Consumer = consumer; i.Retention = retention }), newMessage("x"))
		}
		b.age(2 * time.Hour)
		b.purge(1)
		b.age(8 * day)
		b.purge(1)
		b.age(1000 * day)
		b.purge(0)
		assert.Equal(t, 1, b.count(`SELECT COUNT(*) FROM millrace_claims`))
	})},
	{Name: "open rows and unsettled outcomes stay", Why: "the janitor never touches what is not done", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		s := b.newService(invoice, b.patient().Middleware)
		s.published.FailWith(errBoom)
		assert.False(t, s.deliver(newMessage("unsettled")))
		h := b.inbox(effect, on(b.process()))
		msg := newMessage("first")
		must(t, h, again(msg))
		must(t, h, message.NewMessage(msg.UUID, []byte("collides")))
		b.age(100 * day)
		rig.Purge(t, b.store) // the service's janitor may be quicker
		assert.Equal(t, 1, b.count(`SELECT COUNT(*) FROM millrace_outcomes`))
		assert.Equal(t, 1, b.count(`SELECT COUNT(*) FROM millrace_messages`))
		assert.Equal(t, 2, b.count(`SELECT COUNT(*) FROM millrace_claims`))
	})},
	{Name: "Archive", Why: "it sees each claim before it is deleted; its error keeps them", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		var got []inbox.ExpiredClaim
		fail := errors.New("disk full")
		store := b.newStore(b.db.DB, inbox.Config{Archive: func(_ context.Context, claims []inbox.ExpiredClaim) error {
			got = append(got, claims...)
			return fail
		}})
		msg := newMessage("x")
		must(t, b.inbox(effect), again(msg))
		b.age(8 * day)
		_, err := store.Purge(t.Context())
		require.ErrorIs(t, err, fail)
		assert.Equal(t, 1, b.count(`SELECT COUNT(*) FROM millrace_claims`))
		fail, got = nil, nil
		b.exec(`UPDATE millrace_claims SET result = 3`) // a newer epoch has the message
		n := rig.Purge(t, store)
		assert.Equal(t, 1, n)
		require.Len(t, got, 1)
		assert.Equal(t, msg.UUID, got[0].MessageID)
		assert.Equal(t, "billing", got[0].Consumer)
		assert.True(t, got[0].Superseded)
		assert.WithinDuration(t, time.Now().Add(-8*day), got[0].ProcessedAt, time.Hour)
	})},
	{Name: "results go with their claims", Why: "nothing is left behind to grow", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		must(t, b.inbox(func(msg *message.Message) ([]*message.Message, error) {
			return nil, inbox.SetResult(msg.Context(), 1)
		}), newMessage("x"))
		b.age(8 * day)
		b.purge(1)
		assert.Equal(t, 0, b.count(`SELECT COUNT(*) FROM millrace_results`))
	})},
	{Name: "more claims than a batch", Why: "all that expired goes, in small transactions", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		const n = 1203
		must(t, b.inbox(effect), newMessage("x"))
		b.fill(n)
		b.age(8 * day)
		b.purge(n + 1)
		assert.Equal(t, 0, b.count(`SELECT COUNT(*) FROM millrace_claims`))
	})},
	{Name: "more leases, copies and sent messages than a batch", Why: "all that expired goes in one run, not a batch of it", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		tables := map[string]string{ // columns and values
			"leases":  "(consumer, message_id, token, until) SELECT 1, " + b.db.Bytes("i") + ", 0, 1",
			"dropped": "(consumer, message_id, topic, reason, at) SELECT 1, " + b.db.Bytes("i") + ", " + b.db.Bytes("1") + ", " + b.db.Bytes("1") + ", 1",
			"outbox":  "(topic, uuid, key_hash, created_at, due_at, status) SELECT '1', '1', 1, 1, 1, 4",
		}
		for table, rows := range tables {
			b.exec(`INSERT INTO millrace_` + table + ` ` + rows + ` FROM ` + b.db.Numbers(2500))
		}
		rig.Purge(t, b.store)
		for table := range tables {
			assert.Zero(t, b.count(`SELECT COUNT(*) FROM millrace_`+table), table)
		}
	})},
	{Name: "purging beside claims", Why: "the janitor and the claims never deadlock", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		must(t, b.inbox(effect), newMessage("x"))
		b.fill(2000)
		b.age(8 * day)
		stores := []*inbox.Store{b.process(), b.process()}
		var wg sync.WaitGroup
		for _, store := range stores {
			wg.Go(func() {
				_, err := store.Purge(t.Context())
				assert.NoError(t, err)
			})
			h := b.inbox(effect, on(store))
			wg.Go(func() {
				assert.Equal(t, 0, failures(100, func() error { _, err := h(newMessage("x")); return err }))
			})
		}
		wg.Wait()
		rig.Purge(t, b.store) // a row that others held when it was its turn stays for the next walk
		assert.Equal(t, 201, b.effects())
		assert.Equal(t, 200, b.count(`SELECT COUNT(*) FROM millrace_claims`))
	})},
	{Name: "the plugin purges while the router runs", Why: "retention needs no one to think of it", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		must(t, b.inbox(effect), newMessage("x"))
		b.age(8 * day)
		purged := make(chan struct{})
		b.store = b.newStore(b.db.DB, inbox.Config{Observers: []inbox.Observer{inbox.On(func(_ context.Context, e inbox.Event) {
			if e.Count == 1 {
				close(purged)
			}
		}, inbox.KindPurged)}})
		s := b.oneHandler("orders", effect)
		rig.Within(t, purged, "nothing was purged")
		require.NoError(t, s.router.Close())
		require.NoError(t, b.store.Close(t.Context()))
	})},
}

// age makes all claims older.
func (b *bed) age(by time.Duration) {
	b.Helper()
	b.exec(`UPDATE millrace_claims SET processed_at = processed_at - ?`, by.Microseconds())
}

func (b *bed) purge(want int) {
	b.Helper()
	n := rig.Purge(b, b.store)
	assert.Equal(b, want, n)
}

// fill adds n completed claims, as old as the newest, to the one consumer there is.
func (b *bed) fill(n int) {
	b.Helper()
	const atOnce = 100
	consumer := b.count(`SELECT MAX(consumer) FROM millrace_claims`)
	newest := b.count(`SELECT MAX(processed_at) FROM millrace_claims`)
	for n > 0 {
		rows := min(n, atOnce)
		var args []any
		for range rows {
			args = append(args, consumer, append([]byte{2}, newMessage("").UUID...), newest)
		}
		b.exec(`INSERT INTO millrace_claims (consumer, message_id, payload_hash, token, result, processed_at)
			VALUES (?, ?, 1, 1, 1, ?)`+strings.Repeat(`, (?, ?, 1, 1, 1, ?)`, rows-1), args...)
		n -= rows
	}
}
