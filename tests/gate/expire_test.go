package gate_test

import (
	"fmt"
	"sync/atomic"
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

// One look, every ten seconds, parks thousands that were held too long.
func TestManyAreHeldTooLong(t *testing.T) {
	t.Parallel()
	if !testdb.Long() {
		t.Skip("it waits for a look: MILLRACE_TEST_LONG=1")
	}
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		const many = 3000
		b.queued(b.store)
		must(t, b.gated(b.store, millrace.VersionGate{HeldFor: time.Millisecond}, handler), change("a", 2))
		b.db.Do(t, fmt.Sprintf(`
			INSERT INTO millrace_messages (consumer, message_id, status, topic, uuid, metadata, payload, payload_hash,
				aggregate, version, received_at, due_at)
			WITH RECURSIVE n (j) AS (SELECT 0 UNION ALL SELECT j + 1 FROM n WHERE j < 99)
			SELECT m.consumer, %s, m.status, m.topic, m.uuid, m.metadata, m.payload, m.payload_hash, %s, 2, m.received_at, m.due_at
			FROM millrace_messages m
			CROSS JOIN (SELECT a.j * 100 + b.j AS i FROM n a CROSS JOIN n b WHERE a.j * 100 + b.j < %d) numbers`,
			b.db.Bytes("i"), b.db.Bytes("i % 50"), many-1))
		go func() { assert.NoError(t, b.store.Run(t.Context())) }()
		rig.Eventually(b, "a look begins", func() bool { return b.open(admin.Parked) > 0 })
		looked := time.Now()
		rig.Eventually(b, "all are parked", func() bool { return b.open(admin.Parked) == many })
		assert.Less(t, time.Since(looked), 9*time.Second, "in one look")
		rig.Eventually(b, "all are told", func() bool { return b.events.Count("parked") == many })
		assert.Contains(t, b.events.Last("parked").Err.Error(), "held too long: its predecessor, version 1")
	}))
}

// A consumer for which the look fails does not keep it from those behind.
func TestWhatIsHeldTooLongBehindAConsumerThatFails(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		for _, name := range []string{"first", "second"} {
			rig.Queue(b, b.store, inbox.QueueConfig{Consumer: name})
			h := millrace.Inbox{Store: b.store, Consumer: name}.Middleware(millrace.VersionGate{HeldFor: time.Millisecond}.Middleware(handler))
			must(t, h, change("a", 2))
		}
		pool := faults.Open(t, b.db)
		var looks atomic.Int64
		pool.Set(faults.Plan{Before: faults.At("AS expired", func() error {
			if looks.Add(1)%2 == 1 { // that for the first of the two
				return errFails
			}
			return nil
		})})
		look := b.newStore(pool.DB, inbox.Config{PurgeInterval: 10 * time.Millisecond})
		go func() { assert.NoError(t, look.Run(t.Context())) }()
		rig.Eventually(b, "one is parked", func() bool { return b.events.Count("parked") == 1 })
		assert.Equal(t, "second", b.events.Last("parked").Consumer)
	}))
}

// The look waits for nobody who has the row of a message, such as an operator.
func TestWhatIsHeldTooLongAndInSomebodysHands(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, b *bed) {
		b.queued(b.store)
		taken := change("b", 2)
		must(t, b.gated(b.store, millrace.VersionGate{HeldFor: time.Millisecond}, handler), change("a", 2), taken, change("c", 2))
		id := b.count(`SELECT id FROM millrace_messages WHERE uuid = ?`, []byte(taken.UUID))
		tx, err := b.db.BeginTxx(t.Context(), nil)
		require.NoError(t, err)
		defer tx.Rollback() //nolint:errcheck // it is rolled back below
		require.NoError(t, tx.GetContext(t.Context(), &id, tx.Rebind(`SELECT id FROM millrace_messages WHERE id = ? FOR UPDATE`), id))
		look := b.newStore(b.db.Open(t).DB, inbox.Config{PurgeInterval: 10 * time.Millisecond})
		go func() { assert.NoError(t, look.Run(t.Context())) }()
		rig.Eventually(b, "the others are parked", func() bool { return b.open(admin.Parked) == 2 })
		require.NoError(t, tx.Rollback())
		rig.Eventually(b, "this one is parked, too", func() bool { return b.open(admin.Parked) == 3 })
	})
}

// The look waits for no handler, so that no other handler waits for the look.
func TestWhatIsHeldTooLongBehindASlowHandler(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, b *bed) {
		b.queued(b.store)
		holds := b.gated(b.store, millrace.VersionGate{HeldFor: time.Millisecond}, handler)
		for _, aggregate := range []string{"b0", "b1", "b2", "z"} {
			must(t, holds, change(aggregate, 2))
		}
		finish := b.slowly(millrace.VersionGate{}, func(*message.Message) ([]*message.Message, error) { return nil, errFails }, change("z", 1))
		look := b.newStore(b.db.Open(t).DB, inbox.Config{PurgeInterval: 10 * time.Millisecond})
		go func() { assert.NoError(t, look.Run(t.Context())) }()
		rig.Eventually(b, "the others are parked", func() bool { return b.open(admin.Parked) == 3 })
		must(t, b.gated(b.process(), millrace.VersionGate{}, handler), change("b1", 1))
		assert.Equal(t, 1, b.open(admin.Held), "z is left")
		require.ErrorIs(t, finish(), errFails)
		rig.Eventually(b, "z is parked, too", func() bool { return b.open(admin.Parked) == 4 })
	})
}
