package watermillsql_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/pubsub/watermillsql"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// A message whose handler is slower than AckDeadline comes again while the handler runs;
// its context has ended by then. Resends after a nack get no time of their own.
func TestAckDeadline(t *testing.T) {
	t.Parallel()
	const span = 2 * time.Second
	each(t, func(t *testing.T, db *testdb.DB) {
		t.Parallel()
		publish(t, newPublisher(t, db, "orders"), "orders", "slow")
		messages := subscribe(t, newSubscriber(t, db, "group", func(c *watermillsql.SubscriberConfig) {
			c.InboxTimeout, c.AckDeadline = 100*time.Millisecond, span
		}), "orders")

		first := receive(t, messages)
		deadline, bound := first.Context().Deadline()
		require.True(t, bound)
		assert.LessOrEqual(t, time.Until(deadline), span)
		first.Nack()
		resent := receive(t, messages)
		ofResent, _ := resent.Context().Deadline()
		for !ofResent.Equal(deadline) { // a slow machine: this is another delivery
			require.False(t, time.Now().Before(deadline), "a resend has the deadline of its delivery")
			deadline = ofResent
			resent.Nack()
			resent = receive(t, messages)
			ofResent, _ = resent.Context().Deadline()
		}
		rig.Within(t, resent.Context().Done(), "the deadline")

		again := receive(t, messages) // and nobody answered resent
		assert.Equal(t, "slow", again.UUID)
		later, _ := again.Context().Deadline()
		assert.True(t, later.After(deadline))
		again.Ack()
	})
}

// What was acked within a batch is delivered again when the subscription ends before the
// batch does, as with the process. A batch of one, the default, has no such copies.
func TestBatchComesAgain(t *testing.T) {
	each(t, func(t *testing.T, db *testdb.DB) {
		for _, c := range []struct {
			topic  string
			change []func(*watermillsql.SubscriberConfig)
			next   string
		}{{"ones", nil, "3"}, {"tens", []func(*watermillsql.SubscriberConfig){batch(10)}, "1"}} {
			publish(t, newPublisher(t, db, c.topic), c.topic, "1", "2", "3", "4")
			s := newSubscriber(t, db, "group", c.change...)
			ctx, cancel := context.WithCancel(t.Context())
			messages, err := s.Subscribe(ctx, c.topic)
			require.NoError(t, err)
			receive(t, messages).Ack()
			receive(t, messages).Ack()
			assert.Equal(t, "3", receive(t, messages).UUID)
			cancel()
			_, open := <-messages
			require.False(t, open)

			next := receive(t, subscribe(t, s, c.topic))
			assert.Equal(t, c.next, next.UUID, c.topic)
			require.NoError(t, s.Close())
		}
	})
}

// idle_in_transaction_session_timeout ends a subscriber's transaction whose whole batch is
// slower, and the batch comes again. A batch of one needs the time of one message.
func TestBatchOutlivesIdleTimeout(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "postgres")
	publish(t, newPublisher(t, db, "orders"), "orders", "1", "2", "3", "4", "5", "6", "7", "8")
	const idle = 12 * time.Second // six messages take longer than that, and one by far does not
	frozen := db.Open(t, testdb.FrozenHosts(idle, time.Minute))
	for _, c := range []struct {
		size  int
		group string
		next  string
	}{{1, "one", "7"}, {10, "ten", "1"}} {
		t.Run(c.group, func(t *testing.T) {
			t.Parallel()
			s := newSubscriber(t, frozen, c.group, batch(c.size))
			messages := subscribe(t, s, "orders")
			for range 6 {
				msg := receive(t, messages)
				silentFor(t, idle/5, messages, "it is being handled")
				msg.Ack()
			}
			if c.size > 1 { // the end of the batch, at which the transaction is missed
				receive(t, messages).Ack()
				receive(t, messages).Ack()
			}
			assert.Equal(t, c.next, receive(t, messages).UUID)
			require.NoError(t, s.Close())
		})
	}
}

// Within a group one consumer works and the others wait, without errors in the log, until
// it ends. Another group has its own copy of each message.
func TestOneConsumerPerGroup(t *testing.T) {
	each(t, func(t *testing.T, db *testdb.DB) {
		publish(t, newPublisher(t, db, "orders"), "orders", "1", "2", "3")
		log := &errorLog{}
		logged := func(c *watermillsql.SubscriberConfig) { c.Logger = log }
		working := newSubscriber(t, db, "group", logged)
		waiting := newSubscriber(t, db, "group", logged)
		if db.Dialect == "mysql" { // 50 seconds by default
			waiting = newSubscriber(t, db.Open(t, testdb.Params("innodb_lock_wait_timeout", "1")), "group", logged)
		}
		messages := subscribe(t, working, "orders")
		first := receive(t, messages)
		others := subscribe(t, waiting, "orders")
		ctx, cancel := context.WithCancel(t.Context())
		leaving, err := newSubscriber(t, db, "group", logged).Subscribe(ctx, "orders")
		require.NoError(t, err)
		silent(t, others, "the first consumer has a message")
		cancel()
		_, open := <-leaving
		assert.False(t, open)
		other := newSubscriber(t, db, "Group")
		assert.Equal(t, "1", receive(t, subscribe(t, other, "orders")).UUID,
			"a group whose name differs in case only is another one, and does not wait")
		require.NoError(t, other.Close())
		if db.Dialect == "mysql" {
			for range 3 {
				silent(t, others, "the first consumer has a message") // past the wait for its lock
			}
		}
		first.Ack()
		var second *message.Message
		select {
		case second = <-messages:
		case second = <-others:
		}
		assert.Equal(t, "2", second.UUID)
		second.Ack()
		require.NoError(t, working.Close())
		third := receive(t, others)
		for third.UUID == "2" { // its ack was lost when its consumer was closed
			third.Ack()
			third = receive(t, others)
		}
		assert.Equal(t, "3", third.UUID)
		third.Ack()
		assert.Empty(t, log.errors())
	})
}

// errorLog keeps the errors of queries. watermill-sql may log others when a context ends.
type errorLog struct {
	watermill.NopLogger
	mu   sync.Mutex
	text []string
}

func (l *errorLog) Error(msg string, err error, _ watermill.LogFields) {
	if msg != "Cannot query for messages" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, fmt.Sprintf("%s: %v", msg, err))
}

func (l *errorLog) With(watermill.LogFields) watermill.LoggerAdapter { return l }

func (l *errorLog) errors() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text
}

// The pause is all that is between the failures of a handler.
func TestNackedMessagesPause(t *testing.T) {
	each(t, func(t *testing.T, db *testdb.DB) {
		const pause = 300 * time.Millisecond
		publish(t, newPublisher(t, db, "orders"), "orders", "1")
		messages := subscribe(t, newSubscriber(t, db, "group", func(c *watermillsql.SubscriberConfig) {
			c.ResendInterval = pause
		}), "orders")
		for range 2 {
			msg := receive(t, messages)
			nacked := time.Now()
			msg.Nack()
			again := receive(t, messages)
			assert.GreaterOrEqual(t, time.Since(nacked), pause)
			again.Nack()
		}
		receive(t, messages).Ack()
	})
}

// wmsql.TxFromContext is not rolled back by a nack, whatever its comment says: what a run
// that failed wrote through it is committed with the run that succeeds.
func TestTxFromContextKeepsFailedRuns(t *testing.T) {
	each(t, func(t *testing.T, db *testdb.DB) {
		publish(t, newPublisher(t, db, "orders"), "orders", "1", "2")
		exec(t, db, `CREATE TABLE effects (uuid VARCHAR(36))`)
		messages := subscribe(t, newSubscriber(t, db, "group"), "orders")
		for run := range 2 {
			msg := receive(t, messages)
			tx, found := wmsql.TxFromContext(msg.Context())
			require.True(t, found)
			_, err := tx.ExecContext(t.Context(), `INSERT INTO effects VALUES ('1')`)
			require.NoError(t, err)
			if run == 0 {
				msg.Nack()
			} else {
				msg.Ack()
			}
		}
		assert.Equal(t, "2", receive(t, messages).UUID)
		var effects int
		require.NoError(t, db.GetContext(t.Context(), &effects, `SELECT COUNT(*) FROM effects`))
		assert.Equal(t, 2, effects, "which one would be right")
	})
}

func TestSubscriberCloses(t *testing.T) {
	each(t, func(t *testing.T, db *testdb.DB) {
		p := newPublisher(t, db, "orders")
		log := &errorLog{}
		s := newSubscriber(t, db, "group", func(c *watermillsql.SubscriberConfig) { c.Logger = log })
		messages := subscribe(t, s, "orders")
		publish(t, p, "orders", "1")
		receive(t, messages)
		closed := make(chan error)
		for range 3 {
			go func() { closed <- s.Close() }()
		}
		for range 3 {
			require.NoError(t, rig.Within(t, closed, "Close returns"))
		}
		ended(t, messages)
		_, err := s.Subscribe(t.Context(), "orders")
		require.ErrorIs(t, err, watermillsql.ErrClosed)
		assert.Empty(t, log.errors())
	})
}

// ended checks that a subscription is over.
func ended(t *testing.T, messages <-chan *message.Message) {
	t.Helper()
	select {
	case _, open := <-messages:
		assert.False(t, open)
	default:
		assert.Fail(t, "the channel is not closed yet")
	}
}

// watermill-sql's own Close can return a moment before the channel is closed.
func TestChannelsAreClosedFirst(t *testing.T) {
	each(t, func(t *testing.T, db *testdb.DB) {
		newPublisher(t, db, "orders")
		for range 200 {
			s := newSubscriber(t, db, "group")
			messages := subscribe(t, s, "orders")
			require.NoError(t, s.Close())
			ended(t, messages)
		}
	})
}

// A Subscriber whose turn it is not waits in the database until the message of another one
// of the group is answered. It closes all the same.
func TestCloseWhileAnotherHasTheMessage(t *testing.T) {
	each(t, func(t *testing.T, db *testdb.DB) {
		publish(t, newPublisher(t, db, "orders"), "orders", "1")
		first := receive(t, subscribe(t, newSubscriber(t, db, "group"), "orders"))
		second := newSubscriber(t, db, "group")
		messages := subscribe(t, second, "orders")
		silent(t, messages, "the other one has the message")

		closed := make(chan error, 1)
		go func() { closed <- second.Close() }()
		require.NoError(t, rig.Within(t, closed, "it does not close"))
		assert.NoError(t, first.Context().Err())
		first.Ack()
	})
}

// Publishers that work at the same time are given offsets before they commit. A subscriber
// that read past such an offset would never come back to it.
func TestNoPublisherIsPassedOver(t *testing.T) {
	each(t, func(t *testing.T, db *testdb.DB) {
		const publishers, calls = 16, 60
		p := newPublisher(t, db, "orders")
		messages := subscribe(t, newSubscriber(t, db, "group", batch(20)), "orders")
		var all sync.WaitGroup
		for range publishers {
			all.Go(func() {
				for range calls {
					publish(t, p, "orders", watermill.NewUUID())
				}
			})
		}
		seen := make(map[string]bool)
		for len(seen) < publishers*calls {
			select {
			case msg := <-messages:
				seen[msg.UUID] = true
				msg.Ack()
			case <-time.After(rig.Patience):
				require.Len(t, seen, publishers*calls, "nothing comes any more")
			}
		}
		all.Wait()
	})
}

// The statement of the documentation has a server deliver what came from one that had counted more transactions: nothing is
// lost of what was unread, also where it has a lower offset than what was acked, or was published since.
func TestTablesThatMoveToAnotherServer(t *testing.T) {
	db := testdb.On(t, "postgres")
	p := newPublisher(t, db, "orders")
	for _, uuid := range []string{"1", "2", "3"} {
		publish(t, p, "orders", uuid)
	}
	exec(t, db, `UPDATE watermill_orders SET transaction_id = CASE "offset"
		WHEN 1 THEN (SELECT transaction_id FROM watermill_orders WHERE "offset" = 2)
		WHEN 2 THEN (SELECT transaction_id FROM watermill_orders WHERE "offset" = 1) ELSE transaction_id END`)
	for group, acks := range map[string][]string{"slow": {"2"}, "fast": {"2", "1", "3"}} {
		s := newSubscriber(t, db, group)
		messages := subscribe(t, s, "orders")
		for _, uuid := range acks {
			msg := receive(t, messages)
			assert.Equal(t, uuid, msg.UUID)
			msg.Ack()
		}
		if group == "slow" {
			receive(t, messages) // the first is acked in the database, this one is not
		} else {
			(&billing{T: t, db: db}).drained("orders", group, len(acks))
		}
		require.NoError(t, s.Close())
	}
	const more = `(%[1]s::text::bigint + 1000000000000)::text::xid8`
	exec(t, db, fmt.Sprintf(`UPDATE watermill_orders SET transaction_id = `+more, "transaction_id"))
	exec(t, db, fmt.Sprintf(`UPDATE watermill_offsets_orders SET last_processed_transaction_id = `+more, "last_processed_transaction_id"))
	exec(t, db, `UPDATE watermill_orders SET transaction_id = '5' WHERE "offset" = 2`) // the new server has counted more
	publish(t, p, "orders", "4")
	for range 2 {
		exec(t, db, documented(t, "WITH moved"))
	}
	publish(t, p, "orders", "5")
	for group, want := range map[string][]string{"slow": {"1", "2", "3", "4", "5"}, "fast": {"4", "5"}} {
		messages := subscribe(t, newSubscriber(t, db, group), "orders")
		for _, uuid := range want {
			msg := receive(t, messages)
			assert.Equal(t, uuid, msg.UUID, group)
			msg.Ack()
		}
	}
}
